import Glibc

/// What a run is told.
struct Options {
    var seed: UInt64 = 1
    /// How many refreshes are to be made, one world after the other; nil for as many as `worlds` come to.
    var refreshes: Int?
    var worlds = 1
    /// Nil draws it.
    var replicas: Int?
    /// Nil draws it.
    var grace: Duration?
    /// The faults that may happen; nil for all but those that must be named.
    var faults: Set<String>?
    /// Broken promises that end no world, in a search for others.
    var overlooks: Set<Judge.Kind> = []
    /// What is wrong with the store, to see that it is found.
    var breaks: Set<Break> = []
    var users = 30
    /// For how long things go wrong.
    var duration: Duration = .seconds(180)
    /// How often each user's token is asked for by each of two services.
    var pause: Duration = .seconds(1)
    /// How many worlds are run at once when `refreshes` says so.
    var processes = 1
    var printsProofs = false
    var printsTimeline = false
    var keepsGoing = false

    private static let usage = """
        usage: simulation [options]
          --seed N         the first world's seed (1)
          --worlds N       how many are run, each with the next seed (1)
          --refreshes N    runs worlds until the provider has granted so many instead, and tells of their sum
          --processes N    how many worlds are run at once with --refreshes (1)
          --replicas N     1 to 9 (by the seed)
          --grace S        for how many seconds the provider takes a spent refresh token (by the seed: 0, 10 or 60)
          --faults LIST    what may go wrong, by commas, or "none" (all but go-back):
                           \(names(Faults.Episode.self))
                           \(names(Faults.Message.self))
          --users N        how many log in (30)
          --seconds S      for how long things go wrong in a world (180)
          --overlook LIST  broken promises that end no world, in a search for others:
                           \(names(Judge.Kind.self))
          --break LIST     how the store is broken, to see that it is found:
                           \(names(Break.self))
          --proofs         prints for each session that was lost why it could not be kept
          --keep-going     runs the other seeds, too, after one has failed
          --timeline       prints the whole timeline of each world
        """

    private static func names<Name: CaseIterable & RawRepresentable>(_ type: Name.Type) -> String
    where Name.RawValue == String {
        type.allCases.map(\.rawValue).joined(separator: " ")
    }

    init() {}

    /// Ends the program where the arguments are not to be understood.
    init(_ arguments: [String]) {
        var rest = arguments[...]
        func fail(_ text: String) -> Never {
            print(text + "\n" + Self.usage)
            exit(2)
        }
        func value(_ name: String) -> String {
            guard let value = rest.popFirst() else { fail("\(name) needs a value.") }
            return value
        }
        func number(_ name: String, _ range: ClosedRange<Int>) -> Int {
            guard let number = Int(value(name)), range.contains(number) else {
                fail("\(name) needs a number from \(range.lowerBound) to \(range.upperBound).")
            }
            return number
        }
        func names<Name: RawRepresentable & Hashable>(_ name: String, _ type: Name.Type) -> Set<Name>
        where Name.RawValue == String {
            Set(
                value(name).split(separator: ",").map { word in
                    guard let name = Name(rawValue: String(word)) else { fail("\(name) does not know \(word).") }
                    return name
                })
        }
        while let argument = rest.popFirst() {
            switch argument {
            case "--seed": seed = UInt64(number(argument, 0...Int.max))
            case "--refreshes": refreshes = number(argument, 1...Int.max)
            case "--worlds": worlds = number(argument, 1...Int.max)
            case "--processes": processes = number(argument, 1...64)
            case "--replicas": replicas = number(argument, 1...9)
            case "--grace": grace = .seconds(number(argument, 0...3600))
            case "--users": users = number(argument, 1...10_000)
            case "--seconds": duration = .seconds(number(argument, 1...86_400))
            case "--faults":
                let known = Set(Faults.Episode.allCases.map(\.rawValue) + Faults.Message.allCases.map(\.rawValue))
                let named = Set(value(argument).split(separator: ",").map(String.init))
                let faults = named == ["none"] ? [] : named
                if let unknown = faults.subtracting(known).first { fail("No fault is called \(unknown).") }
                self.faults = faults
            case "--overlook": overlooks = names(argument, Judge.Kind.self)
            case "--break": breaks = names(argument, Break.self)
            case "--proofs": printsProofs = true
            case "--keep-going": keepsGoing = true
            case "--timeline": printsTimeline = true
            case "--help", "-h":
                print(Self.usage)
                exit(0)
            default: fail("\(argument) is no option.")
            }
        }
    }
}
