import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

/// Which refused refreshes are a wave.
@Suite struct `The rule of waves` {
    private static func settings(users: Int, share: Double) -> WaveSettings {
        var settings = WaveSettings()
        (settings.users, settings.share) = (users, share)
        return settings
    }

    @Test(
        arguments: [
            (5, 0.5, 4, 0, false), (5, 0.5, 5, 0, true), (5, 0.5, 6, 0, true), (5, 0.5, 5, 4, true),
            (5, 0.5, 5, 5, true),
            (5, 0.5, 5, 6, false), (5, 0.5, 6, 6, true), (5, 0.5, 4, 1, false), (1, 1, 0, 0, false), (1, 1, 1, 0, true),
            (1, 1, 1, 1, false), (2, 0.1, 2, 17, true), (2, 0.1, 2, 18, true), (2, 0.1, 2, 19, false),
            (100, 0.5, 99, 0, false), (100, 0.5, 100, 100, true), (0, 0.5, 0, 0, false), (0, 0.5, 200, 0, false),
        ] as [(Int, Double, Int, Int, Bool)])
    func `asks for so many users and such a share`(
        users: Int, share: Double, refused: Int, renewed: Int, isWave: Bool
    ) {
        #expect(Self.settings(users: users, share: share).isWave(refused: refused, renewed: renewed) == isWave)
    }

    private static func key(_ text: String) -> StorageKey { StorageKey(text)! }

    @Test(arguments: [(59_999, 2), (60_000, 2), (60_001, 1)])
    func `counts users for as long as the window is`(milliseconds: Int, count: Int) {
        var refusals = WaveRefusals()
        let beginning = ManualTime.beginning
        refusals.add(Self.key("a"), at: beginning, within: .seconds(60))
        refusals.add(Self.key("b"), at: beginning.advanced(by: .milliseconds(milliseconds)), within: .seconds(60))
        #expect(refusals.refused.count == count)
    }

    @Test func `counts a user once, at the last refusal`() {
        var refusals = WaveRefusals()
        let beginning = ManualTime.beginning
        for second in [0, 40, 80] {
            refusals.add(Self.key("a"), at: beginning.advanced(by: .seconds(second)), within: .seconds(60))
        }
        #expect(refusals.refused.map(\.storageKey) == [Self.key("a")])
        #expect(refusals.refused.map(\.time) == [beginning.advanced(by: .seconds(80))])
    }

    @Test(arguments: [(WaveRefusals.most - 1, false), (WaveRefusals.most, false), (WaveRefusals.most + 1, true)])
    func `counts so many at most, over a shorter time then`(count: Int, isCut: Bool) {
        var refusals = WaveRefusals()
        let beginning = ManualTime.beginning
        var now = beginning
        for index in 0..<count {
            now = beginning.advanced(by: .milliseconds(index))
            refusals.add(Self.key("u\(index)"), at: now, within: .seconds(60))
        }
        #expect(refusals.refused.count == min(count, WaveRefusals.most))
        #expect(refusals.isCut == isCut)
        #expect(
            refusals.beginning(at: now, .seconds(60))
                == (isCut ? beginning.advanced(by: .milliseconds(1)) : now.advanced(by: .seconds(-60))))
        #expect(WaveRefusals(decoding: refusals.encoded) == refusals)
    }

    @Test(arguments: [(0, true), (5, true), (6, false)])
    func `counts the refreshes that succeeded at all replicas`(renewed: Int, isWave: Bool) {
        var refusals = WaveRefusals()
        for index in 0..<5 {
            refusals.add(Self.key("u\(index)"), at: ManualTime.beginning, within: .seconds(60))
        }
        #expect(refusals.isWave(WaveSettings(), renewed: renewed) == isWave)
    }

    @Test(arguments: [(59_999, false), (60_000, false), (60_001, true)])
    func `counts for one window what has ended the wave before`(milliseconds: Int, isWave: Bool) throws {
        var refusals = WaveRefusals()
        refusals.note(proven: 6, at: ManualTime.beginning)
        refusals = try #require(WaveRefusals(decoding: refusals.encoded))
        for index in 0..<5 {
            refusals.add(
                Self.key("u\(index)"), at: ManualTime.beginning.advanced(by: .milliseconds(milliseconds)),
                within: .seconds(60))
        }
        #expect(refusals.isWave(WaveSettings(), renewed: 0) == isWave)
        #expect(WaveRefusals(decoding: refusals.encoded) == refusals)
        #expect(WaveRefusals(decoding: Array("[]".utf8)) == nil)
    }

    @Test(
        arguments: [
            (#"{"users": 0}"#, nil), (#"{"users": 100, "share": 1, "window": 3600, "trial": 1}"#, nil), ("{}", nil),
            ("null", nil), (#"{"users": -1}"#, "/wave/users"), (#"{"users": 101}"#, "/wave/users"),
            (#"{"share": 0}"#, "/wave/share"), (#"{"share": 1.01}"#, "/wave/share"),
            (#"{"window": 0}"#, "/wave/window"), (#"{"window": 3601}"#, "/wave/window"),
            (#"{"trial": 0}"#, "/wave/trial"), (#"{"trials": 1}"#, "/wave/trials"),
            ("5", "/wave"),
        ] as [(String, String?)])
    func `is a member of a tenant`(wave: String, pointer: String?) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(.put, "/tenants/t1", body: #"{"client_id": "c1", "wave": \#(wave)}"#)
        #expect(answer.status == (pointer == nil ? 201 : 400))
        #expect(answer.pointers == (pointer.map { [$0] } ?? []))
    }

    @Test func `is told of a tenant where it is not the default`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "wave": {"users": 5}}"#)
        #expect(await broker.call(.get, "/tenants/t1").json["wave"] == nil)
        await broker.makeTenant("t1", #"{"client_id": "c1", "wave": {"users": 3, "share": 0.25, "window": 30}}"#)
        let wave = try #require(await broker.call(.get, "/tenants/t1").json["wave"])
        #expect(["users", "window", "trial"].map { wave[WireText($0)]?.integer } == [3, 30, 10])
        #expect(wave["share"] == .number(0.25))
    }
}
