import BrokerTesting
import DevelopmentProvider
import ExternalText
import HTTPCodec
import Reactor
import Testing

@Suite struct `Running provider` {
    private static func request(_ target: String, _ form: [FormEncoding.Pair]?) -> String {
        guard let form else { return "GET \(target) HTTP/1.1\r\nHost: a\r\n\r\n" }
        let body = FormEncoding.encode(form)
        return "POST \(target) HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-www-form-urlencoded\r\n"
            + "Content-Length: \(body.utf8.count)\r\n\r\n\(body)"
    }

    @Test func `a login over HTTP leads from the page to the redirect`() async throws {
        let running = try RunningProvider(ProviderConfiguration(profile: .rfc, clients: [ProviderClient("app")]))
        let client = try HTTPRawClient(running.address)
        let driver = ProviderDriver(running.provider)
        let query = FormEncoding.encode(driver.authorizationRequest())
        try await client.send(Self.request("/authorize?" + query, nil))
        let page = try await client.response()
        let form = try #require(ProviderForm(html: String(decoding: page.body, as: UTF8.self)))
        let entered: [FormEncoding.Pair] = [.init("user", "alice"), .init("decision", "approve")]
        try await client.send(Self.request(form.action, form.fields + entered))
        let redirect = try await client.response()
        #expect(redirect.status == .found)
        #expect(redirect.fields["Location"]?.text.hasPrefix(driver.redirectURI + "?code=ac_") == true)
        #expect(redirect.fields["Location"]?.text.contains(FormEncoding.percentEncode(running.baseURL)) == true)
        await client.close()
        await running.close()
    }

    @Test func `a scripted delay affects one request and no other`() async throws {
        let clock = ProviderClock()
        let running = try RunningProvider(
            ProviderConfiguration(profile: .rfc, clients: [ProviderClient("app")]), now: { clock.milliseconds },
            clock: clock)
        let path = "/.well-known/oauth-authorization-server"
        running.provider.script(Fault(.metadata, delay: .seconds(60)))
        let slow = try HTTPRawClient(running.address)
        try await slow.send(Self.request(path, nil))
        await clock.waitForSleepers(1)
        let quick = try HTTPRawClient(running.address)
        try await quick.send(Self.request(path, nil))
        #expect(try await quick.response().status == .ok)
        clock.advance(by: .seconds(60))
        #expect(try await slow.response().status == .ok)
        await slow.close()
        await quick.close()
        await running.close()
    }
}
