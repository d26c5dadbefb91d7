package import DevelopmentProvider
internal import HTTPServer
package import Reactor
package import TLS

/// A development provider on a loopback port that the kernel chose.
package final class RunningProvider: Sendable {
    package let provider: DevelopmentProvider
    /// `http://127.0.0.1:` or `https://localhost:`, and the port; the issuer with the RFC profile.
    package let baseURL: String
    package var address: SocketAddress { server.address }
    private let server: Server

    /// - Parameters:
    ///   - configuration: its base URL is replaced by the one listened on.
    ///   - tls: what connections are encrypted with; nil for plain HTTP.
    ///   - now: the provider's time in milliseconds since 1970.
    ///   - clock: what the delays of faults are measured by.
    /// - Throws: `SystemError` when no port can be had.
    package init(
        _ configuration: ProviderConfiguration, tls: TLSServerContext? = nil,
        now: @escaping @Sendable () -> Int64 = { DevelopmentProvider.systemTime() },
        clock: any Clock<Duration> = ContinuousClock()
    ) throws {
        provider = DevelopmentProvider(configuration, now: now, clock: clock)
        let address = SocketAddress(ip: .v4([127, 0, 0, 1]), port: 0)
        var serverConfiguration = DevelopmentProvider.serverConfiguration(address: address, loopCount: 1)
        serverConfiguration.tls = tls
        server = try Server(configuration: serverConfiguration, handler: provider)
        baseURL = tls == nil ? "http://\(server.address)" : "https://localhost:\(server.address.port)"
        if let url = BaseURL(baseURL) { provider.configure { $0.baseURL = url } }
    }

    /// Ends its connections and its thread.
    package func close() async {
        await server.close()
    }
}
