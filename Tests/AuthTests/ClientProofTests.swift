import Auth
import AuthTesting
import BrokerTesting
import Foundation
import HTTPCodec
import Testing

@Suite struct `What a client of the library shows` {
    @Test func `is printed by nothing`() {
        for proof in [
            AuthConfiguration.ClientProof.privateKey("canary"), .secrets("canary", next: "canary"),
            .certificate("canary"),
            .secretFile("canary"), .assertionFile("canary"),
        ] {
            let configuration = AuthConfiguration(
                credentialsStorageKey: "k", clientID: "c", clientProof: proof)
            #expect(!"\(proof)".contains("canary"))
            #expect(!String(reflecting: proof).contains("canary"))
            #expect(!"\(configuration)".contains("canary"))
            var text = ""
            dump(configuration, to: &text)
            dump(proof, to: &text)
            #expect(!text.contains("canary"))
        }
    }
}
