import FoundationEssentials
import Synchronization

@testable import CredentialStore

/// A layer between a file store and the disk that tracks the least that a power failure leaves: the content that each
/// file had when it was synchronized, under the names that each directory had when it was synchronized.
final class PessimalDisk: Sendable {
    typealias Files = [String: [UInt8]]

    private struct Name {
        let inode: UInt64
        let isDirectory: Bool
    }

    private struct State {
        /// The names in each directory.
        var names: [String: [String: Name]] = [:]
        /// The content of each inode.
        var contents: [UInt64: [UInt8]] = [:]
        /// How many calls remain until the power fails.
        var rest: Int?
        var left: (files: Files, directories: Set<String>)?
    }

    private let path: String
    private let state = Mutex(State())

    init(_ path: String) {
        self.path = path
    }

    var fault: FileFault {
        { step in
            self.state.withLock { self.note(step, &$0) }
            return nil
        }
    }

    /// Takes the present state as durable.
    func settle() throws {
        for name in ["."] + (try FileManager.default.subpathsOfDirectory(atPath: path)) {
            let isDirectory = self.name(at: path + "/" + name)?.isDirectory == true
            let step = FileStep(call: isDirectory ? .synchronizeDirectory : .synchronizeFile, path: name)
            state.withLock { note(step, &$0) }
        }
    }

    /// Records what a power failure after that many more calls would leave.
    func losePower(after steps: Int) { state.withLock { ($0.rest, $0.left) = (steps, nil) } }

    /// What the recorded power failure would have left; nil when there were not so many calls.
    var left: (files: Files, directories: Set<String>)? { state.withLock { $0.left } }

    /// What a power failure would leave now.
    var now: (files: Files, directories: Set<String>) { state.withLock { Self.left(of: $0) } }

    private func note(_ step: FileStep, _ state: inout State) {
        if let rest = state.rest {
            if rest == 0 { state.left = Self.left(of: state) }
            state.rest = rest == 0 ? nil : rest - 1
        }
        let place = path + "/" + step.path
        switch step.call {
        case .synchronizeFile:
            guard let name = name(at: place) else { return }
            state.contents[name.inode] = FileManager.default.contents(atPath: place).map { Array($0) }
        case .synchronizeDirectory:
            var names: [String: Name] = [:]
            for entry in (try? FileManager.default.contentsOfDirectory(atPath: place)) ?? [] {
                names[entry] = name(at: place + "/" + entry)
            }
            state.names[step.path] = names
        default: break
        }
    }

    private func name(at place: String) -> Name? {
        guard let attributes = try? FileManager.default.attributesOfItem(atPath: place),
            let inode = attributes[.systemFileNumber] as? UInt64
        else { return nil }
        return Name(
            inode: inode, isDirectory: attributes[.type] as? FileAttributeType == .typeDirectory)
    }

    private static func left(of state: State) -> (files: Files, directories: Set<String>) {
        var files: Files = [:]
        var directories: Set<String> = []
        func walk(_ directory: String) {
            for (entry, name) in state.names[directory] ?? [:] {
                let path = directory == "." ? entry : directory + "/" + entry
                if name.isDirectory {
                    directories.insert(path)
                    walk(path)
                } else {
                    files[path] = state.contents[name.inode] ?? []
                }
            }
        }
        walk(".")
        return (files, directories)
    }
}
