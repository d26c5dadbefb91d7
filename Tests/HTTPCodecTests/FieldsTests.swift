import ExternalText
import HTTPCodec
import Testing

@Suite struct `Header fields` {
    private let fields: Fields = ["Accept": "a, b ,,c", "X-One": "1", "ACCEPT": "d"]

    @Test func `compares names without case and keeps repeated ones in order`() {
        #expect(fields["accept"] == "a, b ,,c")
        #expect(fields.values("aCCept") == ["a, b ,,c", "d"])
        #expect(fields["X-Two"] == nil)
        #expect(fields.contains("x-one"))
        #expect(fields.count == 3)
        #expect(fields.all.map(\.name) == ["Accept", "X-One", "ACCEPT"])
    }

    @Test func `lists members over all lines`() {
        #expect(fields.list("accept") == ["a", "b", "c", "d"])
    }

    @Test func `replaces and removes`() {
        var fields = fields
        fields.set("accept", "z")
        #expect(fields == ["X-One": "1", "accept": "z"])
        fields.set("X-ONE", nil)
        #expect(fields == ["accept": "z"])
        fields.set("absent", nil)
        #expect(fields.count == 1)
    }

    @Test func `equality means the same lines, not the same storage`() {
        var other: Fields = ["Y": "z", "Accept": "b"]
        other.set("Y", nil)
        #expect(other == ["Accept": "b"])
        #expect(other != ["Accept": "c"])
        #expect(other != ["accept": "b"])
        #expect(other != [:])
    }

    @Test func `describes itself without values`() {
        #expect(fields.description == "[Accept, X-One, ACCEPT]")
    }
}
