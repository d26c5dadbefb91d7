// Logs a user in on another device and says whose credentials it then has: the library `Auth`, without a server.
//
//     swift run auth-example <client id> <login service> <auth service> <directory>
//
// With `swift run token-broker-provider` beside it, in development:
//
//     swift run auth-example development http://127.0.0.1:8181 http://127.0.0.1:8181/v1 auth-example-data
//
// The credentials are kept, sealed, in the directory: a second run finds the user logged in. `logout` as a fifth
// argument logs out instead.
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
    // The development provider speaks http on a private address.
    allowsInsecureProviders: loginService.scheme == "http")
let auth = Auth(
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
// What a provider has granted is stored before the process ends.
await environment.close()
exit(status)

/// The whole of what a program does with the library.
func run(_ auth: Auth, logsOut: Bool) async throws(AuthError) -> Int32 {
    // Whoever wants to know of changes listens before they begin.
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
    // The token goes into an API's `Authorization: Bearer`, and nowhere else.
    let end = credentials.expires?.description ?? "-"
    say("user \(credentials.userID ?? "unknown"), level \(credentials.level), good until \(end)")
    return 0
}

/// Prints a line at once, so that whoever waits for it behind a pipe has it.
func say(_ line: String) {
    print(line)
    fflush(nil)
}
