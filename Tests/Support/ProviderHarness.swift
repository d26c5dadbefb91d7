package import DevelopmentProvider
internal import HTTPServer
package import Reactor

/// A development provider on a loopback port that the kernel chose.
package final class RunningProvider: Sendable {
    package let provider: DevelopmentProvider
    /// `http://127.0.0.1:` and the port; the issuer with the RFC profile.
    package let baseURL: String
    package var address: SocketAddress { server.address }
    private let server: Server

    /// - Parameters:
    ///   - configuration: its base URL is replaced by the one listened on.
    ///   - now: the provider's time in milliseconds since 1970.
    ///   - clock: what the delays of faults are measured by.
    /// - Throws: `SystemError` when no port can be had.
    package init(
        _ configuration: ProviderConfiguration,
        now: @escaping @Sendable () -> Int64 = { DevelopmentProvider.systemTime() },
        clock: any Clock<Duration> = ContinuousClock()
    ) throws {
        provider = DevelopmentProvider(configuration, now: now, clock: clock)
        let address = SocketAddress(ip: .v4([127, 0, 0, 1]), port: 0)
        server = try Server(
            configuration: DevelopmentProvider.serverConfiguration(address: address, loopCount: 1), handler: provider)
        baseURL = "http://\(server.address)"
        if let url = BaseURL(baseURL) { provider.configure { $0.baseURL = url } }
    }

    /// Ends its connections and its thread.
    package func close() async {
        await server.close()
    }
}
