import BrokerCore
import BrokerTesting
import Postgres
import Synchronization
import Testing

@Suite struct `The database's link in the log` {
    @Test(
        arguments: [
            ("host=/run/postgresql", nil, "info", #""link":"local""#),
            ("host=localhost,127.0.0.1,::1", nil, "info", #""link":"local""#),
            ("host=database.example", nil, "info", #""link":"tls verify-full""#),
            ("host=database.example sslmode=verify-ca", nil, "info", #""link":"tls verify-ca""#),
            ("host=database.example sslmode=require", nil, "warning", #""link":"tls unverified""#),
            ("host=database.example sslmode=prefer", nil, "warning", #""link":"clear""#),
            ("host=database.example sslmode=disable", nil, "warning", #""link":"clear""#),
            ("host=localhost,database.example sslmode=disable", nil, "warning", #""link":"clear""#),
            (
                "host=localhost", "host=database.example sslmode=disable", "warning",
                #""link":"local","listen_link":"clear""#
            ),
            (
                "host=database.example", "host=database.example", "info",
                #""link":"tls verify-full","listen_link":"tls verify-full""#
            ),
        ] as [(String, String?, String, String)])
    func `says how it is protected, and warns where the other end is not proven`(
        database: String, listener: String?, level: String, link: String
    ) throws {
        let lines = Mutex<[String]>([])
        let log = Log(threshold: .info, time: ManualTime()) { line in
            lines.withLock { $0.append(String(decoding: line, as: UTF8.self)) }
        }
        DatabaseReports.noteLinks(
            try PostgresConfiguration(database + " user=u password=hunter2"),
            listener: try listener.map { try PostgresConfiguration($0) }, log)
        let line = try #require(lines.withLock { $0 }.first)
        #expect(lines.withLock { $0.count } == 1)
        #expect(line.contains(#""level":"\#(level)","event":"database_link",\#(link)}"#))
        for word in ["hunter2", "example", "localhost"] { #expect(!line.contains(word)) }
    }
}
