import BrokerTesting
import HTTPCodec
import Testing

/// The exchanges of imports and exports.
struct ContractTransfers {
    let recorder: ExchangeRecorder

    /// What an export is asked for, with the receiver's key of RFC 7518, appendix C.
    static let order =
        #"{"jwk": {"kty": "EC", "crv": "P-256", "x": "weNJy2HscCSM6AEDTDg04biOvhFhyyWvOHQfeF_PxMQ","#
        + #" "y": "e8lnCO-AlStT-NJVX-crhB7QRYhiix03illJOVAOyck", "kid": "bob"}}"#

    func run() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let line = #"{"storage_key": "a", "refresh_token": "r"}"#
        for query in ["", "?replace=true", "?verify=false", "?dry_run=true"] {
            let taken = await recorder.call(
                broker, .post, "/credentials/import" + query, tenant: "t1", body: line,
                fields: ["Content-Type": "application/x-ndjson"])
            #expect(taken.status == 200)
        }
        let other = await recorder.call(
            broker, .post, "/credentials/import", tenant: "t1", body: line, fields: ["Content-Type": "text/plain"])
        #expect(other.status == 415)
        let given = await recorder.call(broker, .post, "/credentials/export", tenant: "t1", body: Self.order)
        #expect(given.status == 200)
        await recorder.call(broker, .post, "/credentials/export", tenant: "t1", body: "{}")
    }
}
