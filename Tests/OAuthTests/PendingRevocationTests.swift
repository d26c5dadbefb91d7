import ExternalText
import OAuth
import Testing

@Suite struct `Pending revocation` {
    private static let pending = PendingRevocation(
        storageKey: .default,
        credentials: Sample.held(.user, refreshToken: "r", obtainedWith: Sample.client().fingerprint),
        loggedOut: Sample.now)

    /// The seconds since the logout, and those until the next try; nil for none.
    @Test(
        arguments: [
            (-60, 5), (0, 5), (5, 10), (15, 20), (35, 40), (3594, 3599), (3595, 3600), (3596, 3600), (82_800, 3600),
            (82_801, nil), (86_400, nil),
        ] as [(Int, Int?)])
    func `is tried again at intervals that double to an hour, for a day`(elapsed: Int, pause: Int?) {
        let now = Sample.now.advanced(by: .seconds(elapsed))
        #expect(Self.pending.nextTry(after: now) == pause.map { now.advanced(by: .seconds($0)) })
    }

    @Test func `is read as it was written`() {
        #expect(PendingRevocation(decoding: Self.pending.encoded) == Self.pending)
        for text in ["", "{}", "[]", #"{"storage_key": "a b", "logged_out": 1, "credentials": {}}"#] {
            #expect(PendingRevocation(decoding: Array(text.utf8)) == nil)
        }
    }
}
