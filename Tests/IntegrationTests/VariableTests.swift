import BrokerTesting
import Testing

@Suite(.timeLimit(.minutes(2))) struct `Variables with a range` {
    @Test(
        arguments: [
            ("EVENT_DAYS", "0", 78), ("EVENT_DAYS", "1", 0), ("EVENT_DAYS", "365", 0), ("EVENT_DAYS", "366", 78),
            ("EVENT_DAYS", "a week", 78), ("EVENT_LIMIT", "999", 78), ("EVENT_LIMIT", "1000", 0),
            ("EVENT_LIMIT", "1000000000", 0), ("EVENT_LIMIT", "1000000001", 78), ("EVENT_LIMIT", "-1", 78),
            ("PROVIDER_CONCURRENCY", "0", 78), ("PROVIDER_CONCURRENCY", "1", 0), ("PROVIDER_CONCURRENCY", "1024", 0),
            ("GRANT_MEMORY", "-1", 78), ("GRANT_MEMORY", "0", 0), ("GRANT_MEMORY", "86400", 0),
            ("GRANT_MEMORY", "86401", 78),
            ("PROVIDER_CONCURRENCY", "1025", 78), ("CACHE_MEGABYTES", "0", 78), ("CACHE_MEGABYTES", "1", 0),
            ("CACHE_MEGABYTES", "1048576", 0), ("CACHE_MEGABYTES", "1048577", 78), ("CACHE_SECONDS", "-1", 78),
            ("CACHE_SECONDS", "0", 0), ("CACHE_SECONDS", "3600", 0), ("CACHE_SECONDS", "3601", 78),
            ("PROVIDER_TIMEOUT", "0", 78), ("PROVIDER_TIMEOUT", "1", 0), ("PROVIDER_TIMEOUT", "20", 0),
            ("ALLOW_HTTP_PROVIDERS", "true", 0), ("ALLOW_HTTP_PROVIDERS", "1", 78),
            ("PROVIDER_NETWORKS", "10.20.0.0/16", 0), ("PROVIDER_NETWORKS", "10.20.0.0/16,fd12::/16,192.168.1.7", 0),
            ("PROVIDER_NETWORKS", "10.20.0.1/16", 78), ("PROVIDER_NETWORKS", "10.0.0.0/8,", 78),
            ("PROVIDER_NETWORKS", "10.0.0.0/8, 11.0.0.0/8", 0), ("PROVIDER_NETWORKS", "internal.example", 78),
            ("PROVIDER_NETWORKS", "0.0.0.0/0", 78), ("PROVIDER_NETWORKS", "169.254.0.0/16", 78),
            ("PROVIDER_NETWORKS", "169.254.169.254", 0), ("PROVIDER_NETWORKS", "169.254.169.254/32", 0),
            ("PROVIDER_NETWORKS", "169.254.169.254/31", 78), ("PROVIDER_NETWORKS", "100.64.0.0/10,::/0", 0),
            ("CLIENT_FILE_DIRECTORIES", "/run/secrets", 0), ("CLIENT_FILE_DIRECTORIES", "/run/secrets, /srv/keys", 0),
            ("CLIENT_FILE_DIRECTORIES", "run/secrets", 78), ("CLIENT_FILE_DIRECTORIES", "/run/secrets,", 78),
            ("CLIENT_FILE_DIRECTORIES", "/run/../etc", 78), ("CLIENT_FILE_DIRECTORIES", "/", 78),
            ("RENEWAL_PATIENCE", "-1", 78), ("RENEWAL_PATIENCE", "0", 0), ("RENEWAL_PATIENCE", "60", 0),
            ("RENEWAL_PATIENCE", "61", 78), ("RENEWAL_PATIENCE", "2.5", 78),
            ("PROVIDER_TIMEOUT", "21", 78), ("MIGRATE", "false", 0), ("MIGRATE", "no", 78),
            ("TRUSTED_PROXIES", "10.0.0.0/8, 2001:db8::/32,192.0.2.1", 0), ("TRUSTED_PROXIES", "10.0.0.1/8", 78),
            ("TRUSTED_PROXIES", "10.0.0.0/8,", 78), ("TRUSTED_PROXIES", "proxy.example", 78),
            ("AUDIT_CHANGES", "true", 0), ("AUDIT_CHANGES", "yes", 78), ("AUDIT_READS", "none", 0),
            ("AUDIT_READS", "all", 0), ("AUDIT_READS", "1", 78), ("AUDIT_READS", "2", 0),
            ("AUDIT_READS", "1000000", 0), ("AUDIT_READS", "1000001", 78), ("AUDIT_READS", "some", 78),
            ("AUDIT_SIGNATURE_SECONDS", "0", 78), ("AUDIT_SIGNATURE_SECONDS", "1", 0),
            ("AUDIT_SIGNATURE_SECONDS", "3600", 0), ("AUDIT_SIGNATURE_SECONDS", "3601", 78),
            ("LOGIN_RATE", "-1", 78), ("LOGIN_RATE", "0", 0), ("LOGIN_RATE", "1000000", 0),
            ("LOGIN_RATE", "1000001", 78),
            ("DEVICE_LOGIN_RATE", "-1", 78), ("DEVICE_LOGIN_RATE", "0", 0), ("DEVICE_LOGIN_RATE", "1000000", 0),
            ("DEVICE_LOGIN_RATE", "1000001", 78),
            ("WRITE_RATE", "-1", 78), ("WRITE_RATE", "0", 0), ("WRITE_RATE", "1000000", 0),
            ("WRITE_RATE", "1000001", 78),
            ("REQUEST_RATE", "-1", 78), ("REQUEST_RATE", "0", 0), ("REQUEST_RATE", "1000000", 0),
            ("REQUEST_RATE", "1000001", 78),
            ("API_KEY_DAYS", "-1", 78), ("API_KEY_DAYS", "0", 0), ("API_KEY_DAYS", "3650", 0),
            ("API_KEY_DAYS", "3651", 78),
            ("API_KEY_MAX_DAYS", "-1", 78), ("API_KEY_MAX_DAYS", "0", 0), ("API_KEY_MAX_DAYS", "3650", 0),
            ("API_KEY_MAX_DAYS", "3651", 78),
            ("TENANT_REQUEST_RATE", "-1", 78), ("TENANT_REQUEST_RATE", "0", 0),
            ("TENANT_REQUEST_RATE", "1000000", 0), ("TENANT_REQUEST_RATE", "1000001", 78),
            ("ADDRESS_REQUEST_RATE", "-1", 78), ("ADDRESS_REQUEST_RATE", "0", 0),
            ("ADDRESS_REQUEST_RATE", "1000000", 0), ("ADDRESS_REQUEST_RATE", "1000001", 78),
            ("AUTHENTICATION_FAILURE_RATE", "-1", 78), ("AUTHENTICATION_FAILURE_RATE", "0", 0),
            ("AUTHENTICATION_FAILURE_RATE", "1000000", 0), ("AUTHENTICATION_FAILURE_RATE", "1000001", 78),
            ("PENDING_LOGINS", "-1", 78), ("PENDING_LOGINS", "0", 0), ("PENDING_LOGINS", "10000000", 0),
            ("PENDING_LOGINS", "10000001", 78),
            ("PENDING_DEVICE_LOGINS", "-1", 78), ("PENDING_DEVICE_LOGINS", "0", 0),
            ("PENDING_DEVICE_LOGINS", "10000000", 0), ("PENDING_DEVICE_LOGINS", "10000001", 78),
            ("PENDING_APP_LOGINS", "-1", 78), ("PENDING_APP_LOGINS", "0", 0), ("PENDING_APP_LOGINS", "10000000", 0),
            ("PENDING_APP_LOGINS", "10000001", 78),
            ("EVENT_STREAMS_PER_KEY", "-1", 78), ("EVENT_STREAMS_PER_KEY", "0", 0),
            ("EVENT_STREAMS_PER_KEY", "10000000", 0), ("EVENT_STREAMS_PER_KEY", "10000001", 78),
            ("EVENT_STREAMS_PER_TENANT", "-1", 78), ("EVENT_STREAMS_PER_TENANT", "0", 0),
            ("EVENT_STREAMS_PER_TENANT", "10000000", 0), ("EVENT_STREAMS_PER_TENANT", "10000001", 78),
            ("APP_REQUESTS_PER_ADDRESS", "-1", 78), ("APP_REQUESTS_PER_ADDRESS", "0", 0),
            ("APP_REQUESTS_PER_ADDRESS", "10000000", 0), ("APP_REQUESTS_PER_ADDRESS", "10000001", 78),
            ("APP_REQUESTS_PER_USER", "-1", 78), ("APP_REQUESTS_PER_USER", "0", 0),
            ("APP_REQUESTS_PER_USER", "10000000", 0), ("APP_REQUESTS_PER_USER", "10000001", 78),
        ] as [(String, String, Int32)])
    func `are taken within their ranges`(name: String, value: String, status: Int32) async throws {
        let process = try await TestProcess.start(
            [BrokerProcess.program("token-broker"), "config", "check"], environment: ["TOKEN_BROKER_\(name)": value])
        #expect(await process.exitStatus() == status)
    }

    @Test(
        arguments: [
            ("10.0.0.0/8", 78), ("169.254.0.0/16", 78), ("169.254.7.0/24", 0), ("169.254.169.254", 0), ("fe80::/10", 0),
            ("fe80::1", 0), ("fe00::/8", 78), ("fd00:ec2::254", 0), ("fd00:ec2::253", 78), ("fe80::/10,10.0.0.1", 78),
        ] as [(String, Int32)])
    func `networks beside the permission for insecure providers are those that it leaves closed`(
        networks: String, status: Int32
    ) async throws {
        let process = try await TestProcess.start(
            [BrokerProcess.program("token-broker"), "config", "check"],
            environment: [
                "TOKEN_BROKER_ALLOW_INSECURE_PROVIDERS": "true", "TOKEN_BROKER_PROVIDER_NETWORKS": networks,
            ])
        #expect(await process.exitStatus() == status)
    }
}

@Suite(.timeLimit(.minutes(2))) struct `Listening on every address` {
    @Test(
        arguments: [
            ("0.0.0.0:8080", nil, "config check", 78), ("[::]:8080", nil, "config check", 78),
            ("0.0.0.0:8080", nil, "", 78),
            ("0.0.0.0:8080", "https://broker.example", "config check", 0), ("127.0.0.1:8080", nil, "config check", 0),
            ("[::1]:8080", nil, "config check", 0), ("192.0.2.1:8080", nil, "config check", 0),
        ] as [(String, String?, String, Int32)])
    func `needs to be told where browsers reach the broker`(
        listen: String, base: String?, arguments: String, status: Int32
    ) async throws {
        var variables = ["LISTEN": listen]
        variables["PUBLIC_BASE_URL"] = base
        let (ended, output) = try await BrokerProcess.run(
            arguments.split(separator: " ").map(String.init), variables)
        #expect(ended == status)
        if status == 78 {
            #expect(output.contains("TOKEN_BROKER_PUBLIC_BASE_URL "), "\(output)")
            #expect(output.contains("TOKEN_BROKER_LISTEN"), "\(output)")
        }
    }
}
