package import ExternalText
package import JSON

/// A member of an object from outside: its name, where its value stands, and the rule by which it is read and written. One line of
/// a table says all that a setting needs:
///
///     .optional("reuse_grace", \.reuseGrace, .seconds(in: 0...86_400)),
///
/// `Context` is what the rules need beside the object, such as which addresses are allowed.
package struct Member<Root: Sendable, Context: Sendable>: Sendable {
    package let name: WireText
    let read: @Sendable (inout ObjectReader, inout Root, Context) -> Void
    let write: @Sendable (Root, inout JSONWriter, _ revealingSecret: Bool) -> Void

    /// A member that is read and written in a way of its own.
    /// - Parameter write: writes the name, too, unless the member is left out.
    package init(
        _ name: WireText, read: @escaping @Sendable (inout ObjectReader, inout Root, Context) -> Void,
        write: @escaping @Sendable (Root, inout JSONWriter, _ revealingSecret: Bool) -> Void
    ) {
        self.name = name
        self.read = read
        self.write = write
    }

    /// A member whose value may be nil: then it is not written.
    /// - Parameter condition: whether a value is written.
    package static func optional<Value>(
        _ name: WireText, _ path: any WritableKeyPath<Root, Value?> & Sendable, _ rule: MemberRule<Value, Context>,
        writtenIf condition: @escaping @Sendable (Root) -> Bool = { _ in true }
    ) -> Member {
        Member(name) { reader, root, context in
            root[keyPath: path] = rule.read(&reader, name, context)
        } write: { root, json, _ in
            guard let value = root[keyPath: path], condition(root) else { return }
            json.name(name.text)
            rule.write(value, &json)
        }
    }

    /// A member that is always written. One that is not given leaves the value that the object has.
    package static func always<Value>(
        _ name: WireText, _ path: any WritableKeyPath<Root, Value> & Sendable, _ rule: MemberRule<Value, Context>
    ) -> Member {
        Member(name) { reader, root, context in
            if let value = rule.read(&reader, name, context) { root[keyPath: path] = value }
        } write: { root, json, _ in
            json.name(name.text)
            rule.write(root[keyPath: path], &json)
        }
    }

    /// A member that is not written while it has its default. One that is not given leaves the value that the object has.
    package static func unlessUsual<Value: Equatable>(
        _ name: WireText, _ path: any WritableKeyPath<Root, Value> & Sendable, _ rule: MemberRule<Value, Context>,
        usual: Value
    ) -> Member {
        Member(name) { reader, root, context in
            if let value = rule.read(&reader, name, context) { root[keyPath: path] = value }
        } write: { root, json, _ in
            let value = root[keyPath: path]
            if value == usual { return }
            json.name(name.text)
            rule.write(value, &json)
        }
    }
}

extension Array {
    /// Reads all members of the table.
    package func read<Root, Context>(_ reader: inout ObjectReader, into root: inout Root, _ context: Context)
    where Element == Member<Root, Context> {
        for member in self { member.read(&reader, &root, context) }
    }

    /// Writes them in the table's order.
    package func write<Root, Context>(_ root: Root, to json: inout JSONWriter, revealingSecret: Bool)
    where Element == Member<Root, Context> {
        for member in self { member.write(root, &json, revealingSecret) }
    }
}
