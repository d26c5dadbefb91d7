// Logs a user in, and lets other apps of the device in, with the library `Auth` and without a server. `app-b-example` is an app
// that it lets in.
//
//     swift run app-a-example <client id> <issuer> <directory>
//
// For development, start a provider first, in which both programs are apps:
//
//     swift run token-broker-provider --profile authgear --client a --client b \
//         --client-redirect-uri a=https://a.example.com/callback --client-redirect-uri b=https://b.example.com/callback \
//         --x-app2app-enabled a --x-app2app-enabled b
//     swift run app-a-example a http://127.0.0.1:8181 app-a-example-data
//
// On a phone, the system opens an app by a link that belongs to it. Here the links pass through your hands: open an address in
// a browser where a line says `log in at`, copy a link from a line that says `open` to the other program, and enter here each
// link that begins with https://a.example.com/. The program ends at the end of its input.
import Auth
import Foundation

let arguments = Array(CommandLine.arguments.dropFirst())
guard arguments.count == 3, let issuer = URL(string: arguments[1]) else {
    say("usage: app-a-example <client id> <issuer> <directory>")
    exit(2)
}
let environment = AuthEnvironment(
    storage: .directory(arguments[2]),
    // The development provider uses http on a private address.
    allowsInsecureProviders: issuer.scheme == "http")
let auth = AuthClient(
    AuthConfiguration(
        credentialsStorageKey: "app-a", clientID: arguments[0],
        scopes: ["openid", "offline_access", "https://authgear.com/scopes/full-access"], provider: "authgear",
        issuer: issuer, app2appOptions: App2AppOptions(isEnabled: true)),
    in: environment)

let status: Int32
do {
    status = try await run(auth)
} catch {
    say("failed: \(error)")
    status = 1
}
await environment.close()
exit(status)

/// Logs the user in unless an earlier run did, and answers links until the end of the input.
func run(_ auth: AuthClient) async throws(AuthError) -> Int32 {
    if try await !auth.isUserLoggedIn() {
        let callback = URL(string: "https://a.example.com/callback")!
        say("log in at \(try await auth.initializeLogin(redirectURI: callback))")
        guard let query = readLink()?.query else { return 1 }
        try await auth.finalizeLogin(loginResponseQuery: query)
    }
    say("user \(try await auth.credentialsProvider.getCredentials().userID ?? "unknown") is logged in")
    while let link = readLink() {
        guard let request = auth.parseApp2AppAuthenticationRequest(url: link) else {
            say("this is not the request of an app")
            continue
        }
        // The other app has no rights yet. The user decides, and must see who asks and where the answer goes.
        say("let \(request.clientID) in, which gets its answer at \(request.redirectURI)? yes or no")
        do throws(AuthError) {
            if readLine() == "yes" {
                try await auth.approveApp2AppAuthenticationRequest(request, open: open)
            } else {
                try await auth.rejectApp2AppAuthenticationRequest(request, error: "access_denied", open: open)
            }
        } catch {
            say("failed: \(error)")
        }
    }
    return 0
}

/// Where the links of other apps are opened. On a phone this function asks the system to open the link in the app that it belongs
/// to and in no browser, and returns whether it did.
@Sendable func open(_ link: URL) async -> Bool {
    say("open \(link.absoluteString)")
    return true
}

/// The next line of the input that is a link; nil at its end.
func readLink() -> URL? {
    while let line = readLine() {
        if let link = URL(string: line), link.scheme == "https" { return link }
        say("enter a link")
    }
    return nil
}

/// Prints a line and flushes it, so that a program which reads the output through a pipe gets it at once.
@Sendable func say(_ line: String) {
    print(line)
    fflush(nil)
}
