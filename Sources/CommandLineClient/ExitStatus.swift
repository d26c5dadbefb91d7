/// What the exit status of a client's command says, for scripts. Numbers from 64 to 78 are those of the service's own commands.
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
    /// The contexts or the variables are wrong.
    case configuration = 10
    /// The words of a command of the service are wrong.
    case serviceUsage = 64
    /// The variables of the service are wrong.
    case serviceConfiguration = 78
    /// A signal has ended it.
    case interrupted = 130

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
        case .configuration: "the contexts or the variables are wrong"
        case .serviceUsage: "a command of the service: the command line is wrong"
        case .serviceConfiguration: "a command of the service: its variables are wrong"
        case .interrupted: "ended by a signal"
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
}
