import Renewal

/// Looks at every state that a world can come to, breadth first.
///
/// States that were seen are remembered by 64 bits of their hash: of 10^8 states, one in some thousand runs would take two
/// for one and leave out what follows from the second.
struct Explorer {
    struct Finding {
        let violation: String
        /// What happened, one of the shortest ways.
        let timeline: [String]
    }

    private(set) var states = 0
    private(set) var quietStates = 0
    /// Whether every state was looked at.
    private(set) var isComplete = false
    private(set) var finding: Finding?

    /// How a state was come to.
    private struct Origin {
        let parent: Int32
        let move: Int32
    }

    /// Ends with the first violation.
    init(_ setting: World.Setting, atMost limit: Int = .max) {
        var origins = [Origin(parent: -1, move: -1)]
        var seen: Set<Int> = []
        var level: [(world: World, origin: Int32)] = [(World(setting), 0)]
        while !level.isEmpty {
            var next: [(world: World, origin: Int32)] = []
            for (world, origin) in level {
                if world.isQuiet {
                    quietStates += 1
                    if let verdict = world.verdict {
                        finding = Finding(violation: verdict, timeline: Self.timeline(origin, origins, setting))
                        return
                    }
                    continue
                }
                for (index, move) in world.moves(setting, isLabelled: false).enumerated()
                where seen.insert(move.world.hashValue).inserted {
                    states += 1
                    origins.append(Origin(parent: origin, move: Int32(index)))
                    let origin = Int32(origins.count - 1)
                    if let violation = move.world.violation {
                        finding = Finding(violation: violation, timeline: Self.timeline(origin, origins, setting))
                        return
                    }
                    next.append((move.world, origin))
                }
                if states >= limit { return }
            }
            level = next
        }
        isComplete = true
    }

    private static func timeline(_ last: Int32, _ origins: [Origin], _ setting: World.Setting) -> [String] {
        var path: [Int32] = []
        var index = last
        while index > 0 {
            path.append(origins[Int(index)].move)
            index = origins[Int(index)].parent
        }
        var (world, lines) = (World(setting), [String]())
        for move in path.reversed() {
            let taken = world.moves(setting, isLabelled: true)[Int(move)]
            lines.append("\(world.now) s: \(taken.label)")
            world = taken.world
        }
        return lines
    }
}
