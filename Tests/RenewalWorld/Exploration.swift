/// What was found among the states that a world can come to.
package struct Exploration: Sendable {
    package struct Finding: Sendable {
        package let violation: String
        /// What happened, one of the shortest ways.
        package let timeline: [String]
    }

    package fileprivate(set) var states = 0
    package fileprivate(set) var moves = 0
    package fileprivate(set) var quietStates = 0
    /// Of those, worlds whose session is lost and could not be kept.
    package fileprivate(set) var excusedStates = 0
    /// Of all states, those in which a replica has handed its lease over.
    package fileprivate(set) var handedOverStates = 0
    /// Whether every state was looked at.
    package fileprivate(set) var isComplete = false
    package fileprivate(set) var finding: Finding?

    fileprivate init() {}

    /// Looks at every state, breadth first. Ends with the first violation.
    package init(_ setting: Setting, atMost limit: Int = .max) {
        var explorer = Explorer(setting)
        explorer.run(limit)
        self = explorer.found
    }
}

/// Looks at every state that a world can come to, breadth first.
///
/// States that were seen are remembered by 64 bits of their hash: of 10^8 states, one in some thousand runs would take two
/// for one and leave out what follows from the second.
private struct Explorer {
    var found = Exploration()

    private var parents: [UInt32] = [0]
    private var taken: [UInt8] = [0]
    private let c: Context

    init(_ setting: Setting) {
        precondition(MemoryLayout<World.Replica>.size == MemoryLayout<World.Replica>.stride, "no byte may be left out")
        c = Context(setting)
    }

    mutating func run(_ limit: Int) {
        var seen = WordSet()
        var (level, origins) = ([World(c)], [0 as UInt32])
        var possible = Moves()
        while !level.isEmpty {
            var (next, nextOrigins): ([World], [UInt32]) = ([], [])
            for (world, origin) in zip(level, origins) {
                world.moves(c, into: &possible)
                if possible.worlds.isEmpty {
                    found.quietStates += 1
                    if world.isRevoked == 1 { found.excusedStates += 1 }
                    let verdict = world.verdict(c)
                    if verdict != .none {
                        found.finding = Exploration.Finding(violation: verdict.text, timeline: timeline(origin))
                        return
                    }
                    continue
                }
                found.moves += possible.worlds.count
                for (index, world) in possible.worlds.enumerated() where seen.insert(world.hash) {
                    found.states += 1
                    if world.isHandedOver { found.handedOverStates += 1 }
                    parents.append(origin)
                    taken.append(UInt8(index))
                    if world.violation != .none {
                        found.finding = Exploration.Finding(
                            violation: world.violation.text, timeline: timeline(UInt32(found.states)))
                        return
                    }
                    next.append(world)
                    nextOrigins.append(UInt32(found.states))
                }
                if found.states >= limit { return }
            }
            (level, origins) = (next, nextOrigins)
        }
        found.isComplete = true
    }

    private func timeline(_ last: UInt32) -> [String] {
        var path: [UInt8] = []
        var index = last
        while index > 0 {
            path.append(taken[Int(index)])
            index = parents[Int(index)]
        }
        var (world, lines, now) = (World(c), [String](), 0)
        var possible = Moves()
        possible.isLabelled = true
        for move in path.reversed() {
            world.moves(c, into: &possible)
            let label = possible.labels[Int(move)]
            lines.append("\(now) s: \(label)")
            if label == Self.second { now += 1 }
            world = possible.worlds[Int(move)]
        }
        return lines
    }

    static let second = "a second passes"
}

extension World {
    /// Its beginning.
    init(_ c: Context) {
        self.init()
        if c.heedsClocks { life = UInt8(Setting.life) }
        if c.setting.act == .login {
            // The user has logged out, which all replicas have read.
            row.token = Token.loggedOut
        }
        if c.remembers {
            for index in 0..<c.count { (replicas[index].known, replicas[index].knownToken) = (1, row.token) }
        }
        if c.setting.isServed { answer(c) }
    }
}
