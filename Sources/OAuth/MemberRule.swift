package import ExternalText
package import JSON

/// What the value of a member has to be, and how it is written.
package struct MemberRule<Value: Sendable, Context: Sendable>: Sendable {
    /// Nil for a value that is not given, and for one that is wrong: then the reader has noted a fault.
    let read: @Sendable (inout ObjectReader, _ name: WireText, Context) -> Value?
    /// Writes the value, not the name.
    let write: @Sendable (Value, inout JSONWriter) -> Void

    package init(
        read: @escaping @Sendable (inout ObjectReader, _ name: WireText, Context) -> Value?,
        write: @escaping @Sendable (Value, inout JSONWriter) -> Void
    ) {
        self.read = read
        self.write = write
    }

    /// An object with members of its own.
    /// - Parameters:
    ///   - usual: has the values of the members that are not given.
    ///   - check: what is wrong with the whole, as the end of a sentence that begins with its name. It is not asked if a member is
    ///     wrong.
    package static func object(
        _ usual: Value, _ members: [Member<Value, Context>],
        check: @escaping @Sendable (Value) -> String? = { _ in nil }
    ) -> MemberRule {
        MemberRule { reader, name, context in
            let faultsBefore = reader.faultCount
            let value = reader.object(name) { reader in
                var value = usual
                members.read(&reader, into: &value, context)
                return value
            }
            if let value, reader.faultCount == faultsBefore, let fault = check(value) { reader.note(name, fault) }
            return value
        } write: { value, json in
            json.object { members.write(value, to: &$0, revealingSecret: false) }
        }
    }
}

extension MemberRule where Value == Bool {
    package static var flag: MemberRule {
        MemberRule { reader, name, _ in
            reader.bool(name)
        } write: {
            $1.bool($0)
        }
    }
}

extension MemberRule where Value == Duration {
    /// A whole number of seconds.
    package static func seconds(in range: ClosedRange<Int64>) -> MemberRule {
        MemberRule { reader, name, _ in
            reader.integer(name, in: range).map { .seconds($0) }
        } write: {
            $1.integer($0.components.seconds)
        }
    }

    /// A whole number of milliseconds.
    package static func milliseconds(in range: ClosedRange<Int64>) -> MemberRule {
        MemberRule { reader, name, _ in
            reader.integer(name, in: range).map { .milliseconds($0) }
        } write: {
            let (seconds, attoseconds) = $0.components
            $1.integer(seconds * 1000 + attoseconds / 1_000_000_000_000_000)
        }
    }
}

extension MemberRule where Value == Int {
    package static func integer(in range: ClosedRange<Int64>) -> MemberRule {
        MemberRule { reader, name, _ in
            reader.integer(name, in: range).map { Int($0) }
        } write: {
            $1.integer(Int64($0))
        }
    }
}

extension MemberRule where Value == Double {
    /// A number, written without a fraction if it is a whole one.
    package static func number(in range: ClosedRange<Double>) -> MemberRule {
        MemberRule { reader, name, _ in
            reader.number(name, in: range)
        } write: { number, json in
            json.value(Int64(exactly: number).map { .integer($0) } ?? .number(number))
        }
    }
}

extension MemberRule where Value: RawRepresentable & CaseIterable, Value.RawValue == String {
    /// One of the texts of an enumeration.
    package static var choice: MemberRule {
        MemberRule { reader, name, _ in
            reader.choice(name, Value.self)
        } write: {
            $1.string($0.rawValue)
        }
    }
}

extension MemberRule where Value == WireText {
    /// A text of 1 to `limit` bytes without control characters.
    package static func text(limit: Int = 2048) -> MemberRule {
        MemberRule { reader, name, _ in
            reader.string(name, limit: limit)
        } write: {
            $1.string($0.text)
        }
    }
}

extension MemberRule where Value == String {
    /// A text of 1 to `limit` bytes without control characters.
    /// - Parameter check: what is wrong with it, as the end of a sentence, or nil.
    package static func text(
        limit: Int = 2048, check: @escaping @Sendable (WireText, Context) -> String?
    ) -> MemberRule {
        MemberRule { reader, name, context in
            guard let text = reader.string(name, limit: limit) else { return nil }
            guard let fault = check(text, context) else { return text.text }
            reader.note(name, fault)
            return nil
        } write: {
            $1.string($0)
        }
    }
}

extension MemberRule where Value == [WireText] {
    /// A list of texts.
    /// - Parameter check: what is wrong with one of them, as the end of a sentence, or nil.
    package static func texts(
        atMost limit: Int, check: @escaping @Sendable (WireText, Context) -> String?
    ) -> MemberRule {
        MemberRule { reader, name, context in
            reader.strings(name, atMost: limit) { check($0, context) }
        } write: { texts, json in
            json.array { json in for text in texts { json.string(text.text) } }
        }
    }
}

extension MemberRule where Value == [String] {
    /// A list of texts.
    /// - Parameter check: what is wrong with one of them, as the end of a sentence, or nil.
    package static func texts(
        allowsEmpty: Bool = true, atMost limit: Int = 100,
        check: @escaping @Sendable (WireText, Context) -> String?
    ) -> MemberRule {
        MemberRule { reader, name, context in
            reader.strings(name, allowsEmpty: allowsEmpty, atMost: limit) { check($0, context) }?.map(\.text)
        } write: { texts, json in
            json.array { json in for text in texts { json.string(text) } }
        }
    }
}

extension MemberRule where Value == [WireText: WireText] {
    /// Texts by names that this program does not choose, written in the order of their names.
    package static func map(
        _ read: @escaping @Sendable (inout ObjectReader, _ name: WireText) -> [WireText: WireText]?
    ) -> MemberRule {
        MemberRule { reader, name, _ in
            read(&reader, name)
        } write: { map, json in
            json.object { json in
                for (name, value) in map.sorted(by: { $0.key < $1.key }) { json.member(name.text, value.text) }
            }
        }
    }
}
