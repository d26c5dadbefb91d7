import Auth
import AuthTesting
import BrokerTesting
import Cryptography
import FoundationEssentials
import Testing

/// Tests storages that a program brings, against the development provider.
@Suite struct `A storage of the program` {
    private static let masterKeys = BrokerHarness.masterKeys

    private static func environment(_ storage: AuthEnvironment.Storage) -> AuthEnvironment {
        AuthEnvironment(storage: storage, allowsInsecureProviders: true)
    }

    private static func run(_ body: (RunningProvider) async throws -> Void) async throws {
        let provider = try RunningProvider()
        let result: Result<Void, any Error>
        do {
            result = .success(try await body(provider))
        } catch {
            result = .failure(error)
        }
        await provider.close()
        try result.get()
    }

    private static func logIn(_ auth: AuthClient, at provider: RunningProvider) async throws -> Credentials {
        let redirectURI = try #require(URL(string: "my-app://callback"))
        let page = try await auth.initializeLogin(redirectURI: redirectURI)
        let query = try #require(await provider.answer(page, as: "ada"))
        try await auth.finalizeLogin(loginResponseQuery: query)
        return try await auth.getCredentials()
    }

    private static func contains(_ text: String?, _ bytes: [UInt8]?) throws -> Bool {
        let (text, bytes) = (Array(try #require(text).utf8), try #require(bytes))
        return bytes.indices.contains { bytes[$0...].starts(with: text) }
    }

    @Test(arguments: [nil, masterKeys])
    func `a user stays logged in over a restart of the program`(masterKeys: String?) async throws {
        try await Self.run { provider async throws in
            let keychain = KeychainStandIn()
            let storage = AuthEnvironment.Storage.program(keychain, masterKeys: masterKeys)
            let first = Self.environment(storage)
            let credentials = try await Self.logIn(
                AuthClient(provider.configuration(), in: first), at: provider)
            await first.close()
            #expect(await keychain.keys == ["token-broker"])
            #expect(try await !Self.contains(credentials.token, keychain.value(forKey: "token-broker")))
            let second = Self.environment(storage)
            let auth = AuthClient(provider.configuration(), in: second)
            #expect(try await auth.getCredentials().token == credentials.token)
            let renewed = try await auth.getCredentials(apiErrorSubStatus: "11003", refused: credentials)
            #expect(renewed.level == .user && renewed.token != credentials.token)
            try await auth.logout()
            await second.close()
            let third = Self.environment(storage)
            #expect(try await !AuthClient(provider.configuration(), in: third).isUserLoggedIn())
            await third.close()
        }
    }

    @Test func `values of other keys are other credentials`() async throws {
        try await Self.run { provider async throws in
            let keychain = KeychainStandIn(items: ["mail": [1, 2, 3]])
            let (ada, bob) = (
                Self.environment(.program(keychain, key: "ada")), Self.environment(.program(keychain, key: "bob"))
            )
            _ = try await Self.logIn(AuthClient(provider.configuration(), in: ada), at: provider)
            #expect(try await !AuthClient(provider.configuration(), in: bob).isUserLoggedIn())
            await ada.close()
            await bob.close()
            #expect(await keychain.keys == ["ada", "bob", "mail"])
            #expect(try await keychain.value(forKey: "mail") == [1, 2, 3])
            // Without its value, a user is not known any more.
            await keychain.removeItem(forKey: "ada")
            let later = Self.environment(.program(keychain, key: "ada"))
            #expect(try await !AuthClient(provider.configuration(), in: later).isUserLoggedIn())
            await later.close()
        }
    }

    @Test func `processes that share a value share the user, and refresh once`() async throws {
        try await Self.run { provider async throws in
            let keychain = KeychainStandIn()
            let storage = AuthEnvironment.Storage.program(keychain, isShared: true)
            let (app, appExtension) = (Self.environment(storage), Self.environment(storage))
            let (first, second) = (
                AuthClient(provider.configuration(), in: app), AuthClient(provider.configuration(), in: appExtension)
            )
            let credentials = try await Self.logIn(first, at: provider)
            #expect(try await second.getCredentials().token == credentials.token)
            let before = provider.tokenRequests
            async let left = first.getCredentials(apiErrorSubStatus: "11003", refused: credentials)
            async let right = second.getCredentials(apiErrorSubStatus: "11003", refused: credentials)
            let (one, other) = (try await left, try await right)
            #expect(one.token == other.token && one.token != credentials.token)
            #expect(provider.tokenRequests == before + 1)
            await app.close()
            await appExtension.close()
        }
    }

    @Test func `a locked storage is unavailable, and logs no one out`() async throws {
        try await Self.run { provider async throws in
            let keychain = KeychainStandIn()
            let first = Self.environment(.program(keychain))
            let token = try await Self.logIn(AuthClient(provider.configuration(), in: first), at: provider).token
            await first.close()
            await keychain.setLocked(true)
            let second = Self.environment(.program(keychain))
            let auth = AuthClient(provider.configuration(), in: second)
            let error = await #expect(throws: AuthError.self) { try await auth.getCredentials() }
            #expect(error?.code == .storageUnavailable)
            #expect(error?.retryAfter != nil)
            await keychain.setLocked(false)
            #expect(try await auth.getCredentials().token == token)
            await second.close()
        }
    }

    @Test func `other keys than those that sealed a value do not open it`() async throws {
        try await Self.run { provider async throws in
            let other = "k9:" + Base64.encode((0..<32).map { UInt8($0 &* 7) })
            let keychain = KeychainStandIn()
            let first = Self.environment(.program(keychain, masterKeys: Self.masterKeys))
            _ = try await Self.logIn(AuthClient(provider.configuration(), in: first), at: provider)
            await first.close()
            for keys in [other, nil] {
                let environment = Self.environment(.program(keychain, masterKeys: keys))
                let auth = AuthClient(provider.configuration(), in: environment)
                let error = await #expect(throws: AuthError.self) { try await auth.getCredentials() }
                #expect(error?.code == .storageUnusable)
                await environment.close()
            }
            let environment = Self.environment(.program(keychain, masterKeys: "no keys"))
            let auth = AuthClient(provider.configuration(), in: environment)
            let error = await #expect(throws: AuthError.self) { try await auth.getCredentials() }
            #expect(error?.code == .illegalArgument)
            await environment.close()
        }
    }

    @Test func `printing a program's storage shows no key that encrypts`() {
        let storage = AuthEnvironment.Storage.program(KeychainStandIn(), masterKeys: Self.masterKeys)
        #expect("\(storage)" == "program's value token-broker")
        #expect(!String(reflecting: storage).contains(Self.masterKeys))
    }

    // MARK: Encrypted files

    private static let key = (0..<32).map { UInt8($0) }

    @Test func `an encrypted file keeps a user, and shows nothing`() async throws {
        try await Self.run { provider async throws in
            let directory = StoreFixtureDirectory()
            let path = directory.path + "/values"
            let files = try EncryptedFileStorage(directory: path, key: Self.key)
            let first = Self.environment(.program(files))
            let credentials = try await Self.logIn(AuthClient(provider.configuration(), in: first), at: provider)
            await first.close()
            let names = try FileManager.default.contentsOfDirectory(atPath: path).filter { $0.hasSuffix(".sealed") }
            #expect(names.count == 1)
            let name = try #require(names.first)
            let bytes = FileManager.default.contents(atPath: path + "/" + name).map { Array($0) }
            for secret in [credentials.token, "token-broker", "credentials"] {
                #expect(try !Self.contains(secret, bytes))
            }
            let again = try EncryptedFileStorage(directory: path, key: Self.key)
            let second = Self.environment(.program(again))
            let auth = AuthClient(provider.configuration(), in: second)
            #expect(try await auth.getCredentials().token == credentials.token)
            await second.close()
        }
    }

    @Test func `an encrypted file is replaced only where it is what the caller has read`() async throws {
        let directory = StoreFixtureDirectory()
        let path = directory.path + "/values"
        let files = try EncryptedFileStorage(directory: path, key: Self.key)
        let others = try EncryptedFileStorage(directory: path, key: Self.key)
        #expect(try await files.value(forKey: "a") == nil)
        #expect(try await !files.set([1], forKey: "a", replacing: [0]))
        #expect(try await files.set([1], forKey: "a", replacing: nil))
        #expect(try await !others.set([2], forKey: "a", replacing: nil))
        #expect(try await others.set([], forKey: "a", replacing: [1]))
        #expect(try await files.value(forKey: "a") == [])
        #expect(try await files.value(forKey: "b") == nil)
        // Of writers that have read the same value, one wins.
        let won = try await withThrowingTaskGroup(of: Int.self) { group in
            for number in 1...20 {
                let storage = number.isMultiple(of: 2) ? files : others
                group.addTask {
                    try await storage.set([UInt8(number)], forKey: "a", replacing: []) ? 1 : 0
                }
            }
            return try await group.reduce(0, +)
        }
        #expect(won == 1)
    }

    @Test func `an encrypted file opens with its key only, under its name only`() async throws {
        let directory = StoreFixtureDirectory()
        let path = directory.path + "/values"
        let files = try EncryptedFileStorage(directory: path, key: Self.key)
        #expect(try await files.set([1], forKey: "a", replacing: nil))
        let stranger = try EncryptedFileStorage(directory: path, key: Self.key.reversed())
        await #expect(throws: EncryptedFileStorage.Failure.self) { try await stranger.value(forKey: "a") }
        await #expect(throws: EncryptedFileStorage.Failure.self) {
            try await stranger.set([2], forKey: "a", replacing: [1])
        }
        #expect(try await files.value(forKey: "a") == [1])
        for count in [0, 31, 33] {
            #expect(throws: EncryptedFileStorage.Failure.keyLength) {
                try EncryptedFileStorage(directory: path, key: [UInt8](repeating: 1, count: count))
            }
        }
        let name = try #require(
            try FileManager.default.contentsOfDirectory(atPath: path).first { $0.hasSuffix(".sealed") })
        #expect(FileManager.default.createFile(atPath: path + "/" + name, contents: Data([1, 2, 3])))
        await #expect(throws: EncryptedFileStorage.Failure.notOpened(path: path + "/" + name)) {
            try await files.value(forKey: "a")
        }
    }
}
