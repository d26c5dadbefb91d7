import ExternalText
import OAuth
import Testing

@Suite struct `Scope set` {
    @Test(arguments: [
        (0x20, false), (0x21, true), (0x22, false), (0x23, true), (0x5b, true), (0x5c, false), (0x5d, true),
        (0x7e, true), (0x7f, false), (0x80, false), (0x09, false), (0x0a, false), (0x00, false), (0xe9, false),
    ])
    func `a token is made of the characters of RFC 6749`(scalar: Int, isAllowed: Bool) {
        let text = "a" + String(Unicode.Scalar(UInt32(scalar))!) + "z"
        #expect((ScopeSet([text]) != nil) == isAllowed)
    }

    @Test func `an empty token is refused and an empty list is not`() {
        #expect(ScopeSet([""]) == nil)
        #expect(ScopeSet(["a", ""]) == nil)
        #expect(ScopeSet([String]()) == .empty)
        #expect(ScopeSet.empty.isEmpty)
        #expect(ScopeSet.empty.description == "")
    }

    @Test func `order and repetition make no difference`() {
        let set = ScopeSet(["w_usr", "r_usr", "w_usr", "A"])
        #expect(set == ScopeSet(["A", "w_usr", "r_usr"]))
        #expect(set?.values == ["A", "r_usr", "w_usr"])
        #expect(set?.description == "A r_usr w_usr")
        #expect(set.hashValue == ScopeSet(["r_usr", "A", "w_usr"]).hashValue)
    }

    @Test func `case makes a difference`() {
        #expect(ScopeSet(["read"]) != ScopeSet(["Read"]))
    }

    @Test(
        arguments: [
            ([], [], true), ([], ["a"], true), (["a"], ["a"], true), (["a"], ["a", "b"], true),
            (["a", "b"], ["a"], false),
            (["a"], [], false), (["a"], ["A"], false),
        ] as [([String], [String], Bool)])
    func `a subset has no member that the other set lacks`(left: [String], right: [String], isSubset: Bool) {
        #expect(ScopeSet(left)!.isSubset(of: ScopeSet(right)!) == isSubset)
    }

    // Q11
    @Test(
        arguments: [
            ("", []), (" ", []), ("a", ["a"]), ("b a", ["a", "b"]), ("  b   a ", ["a", "b"]), ("a a", ["a"]),
            ("a,b", ["a", "b"]), ("a, b", ["a", "b"]), (",,a,", ["a"]),
            ("openid https://api.example/read:all", ["https://api.example/read:all", "openid"]),
            (#"a "b" c\d e"#, ["a", "e"]), ("a\tb c", ["c"]), ("a\u{e9} b", ["b"]),
        ] as [(String, [String])])
    func `a provider's list is read leniently`(text: String, values: [String]) {
        #expect(ScopeSet(granted: WireText(text)).values == values)
    }
}
