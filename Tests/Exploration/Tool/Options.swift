import RenewalWorld

/// What is explored.
struct Options {
    struct Fault: Error { let text: String }

    private(set) var settings: [Setting] = []
    private(set) var most = Int.max
    /// How many states each setting should have.
    private(set) var least = 0
    /// Whether a violation ends one setting only.
    private(set) var goesOn = false

    static let usage = """
        exploration [--replicas 2,3] [--faults N] [--grace 0,3,9] [--successor same,another] [--journal yes,no]
                    [--only FAULT,...] [--without FAULT,...] [--act none,logout,login] [--served yes,no]
                    [--old RULE,...] [--call-limit S] [--window S] [--most STATES] [--least STATES] [--keep-going]

        Faults: \(Setting.Fault.allCases.map(\.rawValue).joined(separator: ", "))
        Earlier rules (none if not given): \(Setting.OldRule.allCases.map(\.rawValue).joined(separator: ", "))
        """

    init(_ arguments: ArraySlice<String>) throws(Fault) {
        var base = Setting()
        var (replicas, graces) = ([2], [3])
        var (successors, journals) = ([Setting.Successor.same], [true])
        var (acts, served) = ([Setting.Act.none], [false])
        var rest = arguments
        while let name = rest.popFirst() {
            if name == "--keep-going" {
                goesOn = true
                continue
            }
            guard name.hasPrefix("--"), name != "--help", let text = rest.popFirst() else {
                throw Fault(text: Self.usage)
            }
            let words = text.split(separator: ",").map(String.init)
            switch name {
            case "--replicas": replicas = try Self.each(words) { Int($0) }
            case "--faults": base.faults = try Self.one(words) { Int($0) }
            case "--grace": graces = try Self.each(words) { Int($0) }
            case "--successor": successors = try Self.each(words) { Setting.Successor(rawValue: $0) }
            case "--journal": journals = try Self.each(words, Self.yes)
            case "--only": base.allowed = Set(try Self.each(words) { Setting.Fault(rawValue: $0) })
            case "--without": base.allowed.subtract(try Self.each(words) { Setting.Fault(rawValue: $0) })
            case "--act": acts = try Self.each(words) { Setting.Act(rawValue: $0) }
            case "--served": served = try Self.each(words, Self.yes)
            case "--old":
                base.oldRules = Set(try Self.each(words) { Setting.OldRule(rawValue: $0) })
            case "--call-limit": base.callLimit = try Self.one(words) { Int($0) }
            case "--window": base.window = try Self.one(words) { Int($0) }
            case "--most": most = try Self.one(words) { Int($0) }
            case "--least": least = try Self.one(words) { Int($0) }
            default: throw Fault(text: Self.usage)
            }
        }
        for replicas in replicas {
            for grace in graces {
                for successor in successors {
                    for hasJournal in journals {
                        for act in acts {
                            for isServed in served {
                                var setting = base
                                (setting.replicas, setting.grace, setting.successor) = (replicas, grace, successor)
                                (setting.hasJournal, setting.act, setting.isServed) = (hasJournal, act, isServed)
                                settings.append(setting)
                            }
                        }
                    }
                }
            }
        }
    }

    private static func each<T>(_ words: [String], _ value: (String) -> T?) throws(Fault) -> [T] {
        var values: [T] = []
        for word in words {
            guard let value = value(word) else { throw Fault(text: "\(word) is none.\n\(usage)") }
            values.append(value)
        }
        return values
    }

    private static func one<T>(_ words: [String], _ value: (String) -> T?) throws(Fault) -> T {
        let values = try each(words, value)
        guard let first = values.first, values.count == 1 else { throw Fault(text: usage) }
        return first
    }

    private static func yes(_ word: String) -> Bool? { word == "yes" ? true : word == "no" ? false : nil }

    static func name(_ setting: Setting) -> String {
        var name = "\(setting.replicas) replicas, \(setting.faults) faults, grace \(setting.grace)"
        name += ", \(setting.successor) successor, \(setting.hasJournal ? "journals" : "no journals")"
        if setting.act != .none { name += ", \(setting.act)" }
        if setting.isServed { name += ", served" }
        if !setting.oldRules.isEmpty {
            name += ", " + setting.oldRules.map(\.rawValue).sorted().joined(separator: ", ")
        }
        if setting.allowed.count < Setting.Fault.allCases.count {
            let without = Setting.Fault.allCases.filter { !setting.allowed.contains($0) }.map(\.rawValue)
            let with = setting.allowed.map(\.rawValue).sorted()
            name +=
                without.count < with.count
                ? ", without \(without.joined(separator: " "))" : ", of \(with.joined(separator: " "))"
        }
        return name
    }
}
