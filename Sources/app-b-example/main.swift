// Logs its user in through another app of the device, with the library `Auth` and without a server. `app-a-example` is that app;
// its source says how to start a provider for both.
//
//     swift run app-b-example <client id> <issuer> <directory>
//     swift run app-b-example b http://127.0.0.1:8181 app-b-example-data
//
// Copy the link of the line that says `open` to `app-a-example`, and enter here the link that it answers with, which begins with
// https://b.example.com/.
import Auth
import Foundation

let arguments = Array(CommandLine.arguments.dropFirst())
guard arguments.count == 3, let issuer = URL(string: arguments[1]) else {
    say("usage: app-b-example <client id> <issuer> <directory>")
    exit(2)
}
let environment = AuthEnvironment(
    storage: .directory(arguments[2]),
    // The development provider uses http on a private address.
    allowsInsecureProviders: issuer.scheme == "http")
let auth = AuthClient(
    AuthConfiguration(
        credentialsStorageKey: "app-b", clientID: arguments[0],
        scopes: ["openid", "offline_access", "https://authgear.com/scopes/full-access"], provider: "authgear",
        issuer: issuer),
    in: environment)

let status: Int32
do {
    status = try await run(auth)
} catch {
    say("failed: \(error)")
    status = 1
}
// This stores the tokens that the provider has granted before the process ends.
await environment.close()
exit(status)

/// Logs the user in unless an earlier run did, and prints who the user is.
func run(_ auth: AuthClient) async throws(AuthError) -> Int32 {
    if try await !auth.isUserLoggedIn() {
        try await auth.startApp2AppAuthentication(
            options: App2AppAuthenticateOptions(
                authorizationEndpoint: URL(string: "https://a.example.com/authorize")!,
                redirectURI: URL(string: "https://b.example.com/callback")!, state: "page 7"),
            // On a phone this asks the system to open the link in the app that it belongs to and in no browser, and returns
            // whether it did.
            open: { link in
                say("open \(link.absoluteString)")
                return true
            })
        guard let link = readLine().flatMap({ URL(string: $0) }) else { return 1 }
        let state = try await auth.handleApp2AppAuthenticationResult(url: link)
        say("back at \(state ?? "the beginning")")
    }
    let credentials = try await auth.credentialsProvider.getCredentials()
    // Send the token only to an API, as `Authorization: Bearer`. Never print it.
    say("user \(credentials.userID ?? "unknown"), level \(credentials.level)")
    return 0
}

/// Prints a line and flushes it, so that a program which reads the output through a pipe gets it at once.
@Sendable func say(_ line: String) {
    print(line)
    fflush(nil)
}
