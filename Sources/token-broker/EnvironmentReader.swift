import BrokerCore
import ExternalText
import OAuth
import Reactor

/// Reads variables of the environment and collects their faults.
struct EnvironmentReader: TextReader {
    let environment: [String: String]
    private(set) var faults: [String] = []
    /// The variables that name a file which other users can read.
    private(set) var exposedFiles: [FileVariable] = []

    init(_ environment: [String: String]) {
        self.environment = environment
    }

    mutating func note(_ name: StaticString, _ detail: String) { fault("\(name) \(detail)") }

    /// - Parameter text: a sentence that begins with the name of a variable.
    mutating func fault(_ text: String) { faults.append(text) }

    func string(_ name: StaticString) -> WireText? { text(name).map { WireText($0) } }

    func text(_ name: StaticString) -> String? { text("\(name)") }

    /// The value of a variable. An empty value counts as not set, because compose files and charts write unset variables that way.
    private func text(_ name: String) -> String? { environment[name].flatMap { $0.isEmpty ? nil : $0 } }

    /// The value of a variable that many programs read, as it is set: in upper or in lower case.
    func common(_ name: StaticString) -> CommonVariable? {
        let upper = "\(name)"
        let lower = String(decoding: upper.utf8.map { $0 == UInt8(ascii: "_") ? $0 : $0 | 0x20 }, as: UTF8.self)
        for name in [upper, lower] {
            if let value = text(name) { return CommonVariable(name: name, value: value) }
        }
        return nil
    }

    /// Addresses and CIDR ranges, separated by commas; nil if the variable is not set.
    mutating func networks(_ name: StaticString) -> [NetworkRange]? {
        value(
            name,
            rule:
                "must be a comma-separated list of addresses and CIDR ranges, such as 10.0.0.0/8,2001:db8::1; a range must not "
                + "have bits set after its prefix"
        ) { list in
            let items = list.text.split(separator: ",", omittingEmptySubsequences: false)
            let ranges = items.map { item in NetworkRange(parsing: String(item.filter { $0 != " " })) }
            return ranges.contains(nil) ? nil : ranges.compactMap(\.self)
        }
    }

    /// A value that a variable has, or a file that its `_FILE` form names. Nothing is read yet.
    func source(_ name: StaticString) -> TextSource {
        TextSource(name: name, text: text(name), path: text("\(name)_FILE"))
    }

    /// The value of a variable, or the content of the file that its `_FILE` form names, without trailing newlines.
    mutating func secret(_ name: StaticString) -> String? { secret(source(name)) }

    /// - Parameter mayBeMissing: whether a file that does not exist is accepted.
    mutating func secret(_ source: TextSource, mayBeMissing: Bool = false) -> String? {
        guard let (text, access) = content(source, mayBeMissing: mayBeMissing) else { return nil }
        guard let access else { return text }
        check(access, of: FileVariable(name: source.name, isFileForm: true))
        let trimmed = text.trimmingNewlines
        if trimmed.isEmpty { fault("\(source.name)_FILE names an empty file") }
        return trimmed.isEmpty ? nil : trimmed
    }

    /// The value of a variable, or the content of the file that its `_FILE` form names. It is no secret, but other users must not
    /// be able to change it.
    mutating func document(_ name: StaticString) -> String? { document(source(name)) }

    mutating func document(_ source: TextSource) -> String? {
        guard let (text, access) = content(source) else { return nil }
        if let access { checkOwner(access, of: FileVariable(name: source.name, isFileForm: true)) }
        return text
    }

    /// The value of a variable, or the content of the file that its `_FILE` form names with what other users may do with that
    /// file; nil for neither, and after a fault.
    private mutating func content(
        _ source: TextSource, mayBeMissing: Bool = false
    ) -> (text: String, access: FileAccess?)? {
        guard let path = source.path else { return source.text.map { ($0, nil) } }
        if source.text != nil {
            note(source.name, "and \(source.name)_FILE are both set; set one of them")
            return nil
        }
        if mayBeMissing, !SmallFile.exists(path) { return nil }
        guard let (bytes, access) = try? SmallFile.readWithAccess(path, limit: 65_536),
            let text = String(validating: bytes, as: UTF8.self)
        else {
            fault("\(source.name)_FILE names a file that cannot be read")
            return nil
        }
        return (text, access)
    }

    /// Notes that other users can change a file which was found readable, and that they can read it.
    /// - Parameter name: of the variable whose value is the path.
    mutating func checkAccess(toSecretFile path: String, named name: StaticString) {
        guard let (_, access) = try? SmallFile.readWithAccess(path, limit: 1 << 20) else {
            return note(name, "names a file that cannot be read")
        }
        check(access, of: FileVariable(name: name, isFileForm: false))
    }

    private mutating func check(_ access: FileAccess, of variable: FileVariable) {
        checkOwner(access, of: variable)
        if access.isReadableByOthers { exposedFiles.append(variable) }
    }

    private mutating func checkOwner(_ access: FileAccess, of variable: FileVariable) {
        if access.belongsToAnother {
            fault("\(variable) names a file that belongs to another user; it must be this user's or root's")
        }
        if access.isWritableByOthers {
            fault("\(variable) names a file that other users can write to; allow its owner only (chmod 600)")
        }
    }

    /// Notes that other users can write to a token's file that a variable's value has in it, and that they can read it. The file
    /// may belong to another user: the agent that writes it.
    mutating func checkAccess(toTokenFile path: String, in name: StaticString) {
        guard let access = try? SmallFile.readWithAccess(path, limit: 65_536).access else { return }
        if access.isWritableByOthers { note(name, "names a token's file that other users can write to") }
        if access.isReadableByOthers { exposedFiles.append(FileVariable(name: name, isFileForm: false)) }
    }

    /// How many variables Kubernetes has set for services whose names begin with token-broker.
    var serviceLinkCount: Int {
        environment.count { name, value in isUnknown(name) && UnknownVariable.isOfKubernetes(name, value) }
    }

    /// The variables with this program's prefix that are neither its own nor set by Kubernetes for a service with this name.
    var unknownVariables: [UnknownVariable] {
        environment.keys.sorted()
            .filter { isUnknown($0) && !UnknownVariable.isOfKubernetes($0, environment[$0] ?? "") }
            .map { UnknownVariable($0) }
    }

    private func isUnknown(_ name: String) -> Bool {
        name.hasPrefix(Variable.prefix) && !Variable.ownNames.contains(name)
    }
}

/// Where the text of a variable is that has a `_FILE` form.
struct TextSource: Sendable {
    let name: StaticString
    /// The variable's value; nil if it is not set.
    let text: String?
    /// The value of the `_FILE` form; nil if that is not set.
    let path: String?

    var isSet: Bool { text != nil || path != nil }
}

/// A variable that names a file: by its value, or by that of its `_FILE` form.
struct FileVariable: Sendable, CustomStringConvertible {
    let name: StaticString
    let isFileForm: Bool

    var description: String { isFileForm ? "\(name)_FILE" : "\(name)" }
}

/// A variable that many programs read.
struct CommonVariable: Sendable {
    /// As it is set: in upper or in lower case.
    let name: String
    let value: String
}

extension String {
    var trimmingNewlines: String {
        var text = Substring(self)
        while let last = text.last, last.isNewline { text.removeLast() }
        return String(text)
    }
}
