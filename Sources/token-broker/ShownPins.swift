import BrokerCore
import HTTPSClient
import Reactor

/// Connects to the server and prints the pins of its verified certificates, or why they could not be had. The server may be at
/// any address, because the operator has named it.
func showPins(of origin: URLTarget.Origin) -> Never {
    let configuration = loadConfiguration(for: .pins(origin))
    runCommand { () async throws(CommandFailure) in
        do {
            let client = try HTTPSClient(
                configuration: configuration.outbound, loop: try EventLoop(name: "pins"), resolver: try NameResolver())
            for line in lines(try await client.certificates(of: origin)) { Console.print(line) }
            return 0
        } catch let error as TransportError {
            throw CommandFailure(text: "\(origin.authority): \(TenantCheck.words(error))")
        } catch {
            throw CommandFailure(text: "\(error)")
        }
    }
}

/// One line for each certificate: its pin, its place in the chain, for how long it is valid, and whose it is.
private func lines(_ chain: [VerifiedCertificate]) -> [String] {
    chain.enumerated().map { index, certificate in
        let place = index == 0 ? "server" : index == chain.count - 1 ? "root" : "intermediate"
        return "\(certificate.pin)  \(place)  \(certificate.secondsUntilExpiry / 86_400) days  \(certificate.subject)"
    }
}
