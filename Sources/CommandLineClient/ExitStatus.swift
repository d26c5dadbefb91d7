/// What the exit status of a command says, for scripts: of all commands, those of the service among them. Numbers from 64 to 78 are
/// the service's alone; `run` ends as its program does, unless there is none.
package enum ExitStatus: Int32, Sendable, CaseIterable {
    case done = 0
    /// For a reason that no other status names.
    case failed = 1
    /// The words of the command line are wrong.
    case usage = 2
    /// Whose token was asked for is not logged in.
    case notLoggedIn = 3
    /// What a name or an identifier stands for does not exist.
    case notFound = 4
    /// The broker cannot be reached.
    case unreachable = 5
    /// There is no key, it is wrong, or it may not do this.
    case forbidden = 6
    /// Some of it is done, and what is not is told.
    case partly = 7
    /// A value or a file is refused.
    case refused = 8
    /// It may succeed later.
    case tryLater = 9
    /// The contexts or the variables are wrong; of `doctor`, there are warnings.
    case configuration = 10
    /// The words of a command of the service are wrong.
    case serviceUsage = 64
    /// Something that the service has stored is damaged, or its installation has a fault.
    case damaged = 65
    /// The system does not allow what protects the secrets of the process.
    case unprotected = 71
    /// The variables of the service are wrong.
    case serviceConfiguration = 78
    /// The program that was to be run cannot be started, as shells have it.
    case programNotStarted = 126
    /// There is no program of the name.
    case noSuchProgram = 127
    /// A signal has ended it.
    case interrupted = 130
    /// What reads standard output has gone.
    case unread = 141

    /// For the help and the manual.
    package var meaning: String {
        switch self {
        case .done: "done"
        case .failed: "failed for another reason, which is on standard error"
        case .notLoggedIn: "the user is not logged in; run token-broker login"
        case .notFound: "there is no such tenant, key, client, provider, session or login"
        case .usage: "the command line is wrong"
        case .partly:
            "done in part, and what is not done is on standard error; or, by apply --exit-code, something differs"
        case .refused: "a value or a file is refused"
        case .unreachable: "the broker cannot be reached"
        case .tryLater: "not now; try again later"
        case .forbidden: "no key, a wrong key, or one that may not do this"
        case .configuration: "the contexts or the variables are wrong; of doctor: there are warnings, and no faults"
        case .serviceUsage: "a command of the service: the command line is wrong"
        case .damaged:
            "doctor: there are faults; doctor store, keys status, audit verify and audit export: something is damaged, or cannot "
                + "be decrypted"
        case .unprotected: "the system does not allow what protects the secrets: no core dumps, and locked memory"
        case .serviceConfiguration: "a command of the service: its variables are wrong"
        case .programNotStarted: "run, which else ends as its program does: the program cannot be started"
        case .noSuchProgram: "run: there is no such program"
        case .interrupted: "ended by Control-C or SIGTERM"
        case .unread: "what reads standard output has gone, as after | head"
        }
    }

    /// What a command of the service ends with in its place.
    package var ofService: ExitStatus {
        switch self {
        case .usage: .serviceUsage
        case .configuration: .serviceConfiguration
        default: self
        }
    }
}

/// Why a command has not done what it was asked for, for the person or the program that ran it.
package struct CommandError: Error, Equatable {
    package let status: ExitStatus
    /// What is wrong, in one sentence without the program's name.
    package let text: String
    /// What to run next, as it is typed: `token-broker login --tenant music`. Nil where there is nothing to run.
    package let next: String?

    package init(_ status: ExitStatus, _ text: String, next: String? = nil) {
        self.status = status
        self.text = text
        self.next = next
    }

    /// Something else than a broker has answered.
    /// - Parameters:
    ///   - detail: what has come.
    ///   - url: the address; nil where it is not known.
    static func stranger(_ detail: String, at url: String? = nil) -> CommandError {
        CommandError(
            .failed, "no token-broker answers \(url.map { "at " + $0 } ?? "there"): \(detail)",
            next: "token-broker context list")
    }
}
