// A program that logs a user in and calls an API, without a server.
//
//     swift run auth-example <client id> <login service> <auth service> [<directory>]
//
// Try it with `swift run token-broker-provider`, which prints what to put in. The credentials are kept in the directory
// (./auth-example-data), so that a second run finds the user logged in.
import Auth
import Foundation

let arguments = CommandLine.arguments.dropFirst()
guard arguments.count >= 3, let loginService = URL(string: arguments[2]), let authService = URL(string: arguments[3])
else {
    print("usage: auth-example <client id> <login service> <auth service> [<directory>]")
    exit(2)
}
let environment = AuthEnvironment(
    storage: .directory(arguments.count > 3 ? arguments[4] : "auth-example-data"), allowsInsecureProviders: true)
let auth = Auth(
    AuthConfiguration(
        credentialsStorageKey: "example", clientID: arguments[1], tidalLoginServiceBaseURI: loginService,
        tidalAuthServiceBaseURI: authService, certificatePinning: false),
    in: environment)
print("logged in:", try await auth.isUserLoggedIn())
