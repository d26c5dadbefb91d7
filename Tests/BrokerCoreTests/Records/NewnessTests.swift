import CredentialStore
import OAuth
import Testing

@testable import BrokerCore

@Suite struct `What this process knows is newer than what the store shows` {
    /// Credentials of version 7 that have replaced the tokens 1 and 2.
    @Test(
        arguments: [
            // The store has lost them: it has an earlier version, or nothing.
            (6, 9, nil, false, false, true), (0, nil, nil, false, false, true),
            // It has them, or what came after them.
            (7, 9, nil, true, true, false), (8, 9, nil, true, true, false), (8, nil, nil, true, true, false),
            // Another replica has stored again what came before them.
            (8, 1, nil, true, false, true), (8, 2, nil, true, false, true), (8, 2, nil, false, false, false),
            // A renewal that had begun before their login was stored over it, or the end of the session that it found.
            (8, 9, 2, true, true, true), (8, nil, 1, true, true, true),
            // They came of a renewal themselves, or nothing was lost lately, or the other one came after them.
            (8, 9, 2, true, false, false), (8, 9, 2, false, true, false), (8, 9, 3, true, true, false),
        ] as [(Int64, UInt8?, UInt8?, Bool, Bool, Bool)])
    func `where credentials came later`(
        version: Int64, token: UInt8?, spent: UInt8?, mayBeRestored: Bool, isAct: Bool, isNewer: Bool
    ) {
        let known = Newness.Credentials(version: 7, isAct: isAct, replaced: [[1], [2]])
        let stored = Newness.StoredCredentials(
            version: version, token: token.map { [$0] }, spent: spent.map { [$0] })
        #expect(Newness.isNewer(known, than: stored, mayBeRestored: mayBeRestored) == isNewer)
    }

    /// A session of generation 3 in version 7.
    @Test(
        arguments: [
            (3, 7, false), (3, 6, true), (3, 8, false), (2, 6, true), (4, 8, false),
            // Stored again by a replica that did not have the last refresh; and the other way round.
            (2, 8, true), (4, 6, false),
        ] as [(UInt32, Int64, Bool)])
    func `where a session has a later generation, or a later version of the same one`(
        generation: UInt32, version: Int64, isNewer: Bool
    ) {
        let known = Newness.Session(generation: 3, version: 7)
        #expect(Newness.isNewer(known, than: .init(generation: generation, version: version)) == isNewer)
        #expect(Newness.isNewer(known, than: nil))
    }

    /// A record that was stored or removed in version 7.
    @Test(
        arguments: [
            (false, false, nil, true), (false, false, 6, true), (false, false, 7, false), (false, false, 8, false),
            // Nothing is missed that another process may have removed while this one did not run.
            (false, true, nil, false), (false, true, 6, true), (false, true, 7, false), (false, true, 8, false),
            (true, false, nil, false), (true, false, 6, true), (true, false, 7, true), (true, false, 8, false),
            (true, true, nil, false), (true, true, 6, true), (true, true, 7, true), (true, true, 8, false),
        ] as [(Bool, Bool, Int64?, Bool)])
    func `where a login or a setting has a later version, or was removed`(
        isRemoved: Bool, isTakenUp: Bool, stored: Int64?, isNewer: Bool
    ) throws {
        let known = RecentCommits.Known(
            id: RecordID(.client, try #require(TenantName("t1"))), version: 7, isRemoved: isRemoved,
            isTakenUp: isTakenUp)
        #expect(Newness.isNewer(known, than: stored) == isNewer)
    }
}
