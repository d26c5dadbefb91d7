// Logs a user in on another device and prints the user's credentials, with the library `Auth` and without a server.
//
//     swift run auth-example <client id> <login service> <auth service> <directory>
//
// For development, start `swift run token-broker-provider` first and then:
//
//     swift run auth-example development http://127.0.0.1:8181 http://127.0.0.1:8181/v1 auth-example-data
//
// The directory stores the credentials encrypted, so that in a second run the user is still logged in. With `logout` as
// the fifth argument the program logs the user out instead.
import Auth
import Foundation

let arguments = Array(CommandLine.arguments.dropFirst())
let logsOut = arguments.count == 5 && arguments[4] == "logout"
guard arguments.count == 4 || logsOut, let loginService = URL(string: arguments[1]),
    let authService = URL(string: arguments[2])
else {
    say("usage: auth-example <client id> <login service> <auth service> <directory> [logout]")
    exit(2)
}
let environment = AuthEnvironment(
    storage: .directory(arguments[3]),
    // The development provider uses http on a private address.
    allowsInsecureProviders: loginService.scheme == "http")
let auth = AuthClient(
    AuthConfiguration(
        credentialsStorageKey: "example", clientID: arguments[0], scopes: ["r_usr"],
        tidalLoginServiceBaseURI: loginService, tidalAuthServiceBaseURI: authService,
        certificatePinning: loginService.scheme != "http"),
    in: environment)

let status: Int32
do {
    status = try await run(auth, logsOut: logsOut)
} catch {
    say("failed: \(error)")
    status = 1
}
// This stores the tokens that the provider has granted before the process ends.
await environment.close()
exit(status)

/// Logs the user in or out.
func run(_ auth: AuthClient, logsOut: Bool) async throws(AuthError) -> Int32 {
    // Subscribe before the first change, so that no message is missed.
    let bus = auth.credentialsProvider.bus
    let listener = Task {
        for await message in bus { say("changed: \(message.credentials)") }
    }
    defer { listener.cancel() }

    if logsOut {
        try await auth.logout()
        say("logged out")
        return 0
    }
    if try await !auth.isUserLoggedIn() {
        let login = try await auth.initializeDeviceLogin()
        say("open \(login.verificationURI) and enter \(login.userCode)")
        try await auth.finalizeDeviceLogin()
    }
    let credentials = try await auth.credentialsProvider.getCredentials()
    // Send the token only to an API, as `Authorization: Bearer`. Never print it.
    let expiry = credentials.expires?.description ?? "-"
    say("user \(credentials.userID ?? "unknown"), level \(credentials.level), valid until \(expiry)")
    return 0
}

/// Prints a line and flushes it, so that a program which reads the output through a pipe gets it at once.
func say(_ line: String) {
    print(line)
    fflush(nil)
}
