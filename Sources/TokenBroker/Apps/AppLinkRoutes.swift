import BrokerCore
import HTTPCodec
import HTTPServer
import OAuth

/// The files by which devices learn which apps open links of the broker's host.
struct AppLinkRoutes {
    private let broker: Broker

    init(_ broker: Broker) {
        self.broker = broker
    }

    var all: [Route] {
        [
            Route(.get, "/.well-known/assetlinks.json", .open) { (call) throws(BrokerError) in
                try await answer(call, \.assetLinks)
            },
            Route(.get, "/.well-known/apple-app-site-association", .open) { (call) throws(BrokerError) in
                try await answer(call, \.appleAssociation)
            },
        ]
    }

    private func answer(
        _ call: Call, _ file: (AppLinkFiles.Files) -> [UInt8]
    ) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let files = try await broker.core.appLinks.files()
        return Response(
            .ok, fields: ["Content-Type": "application/json", "Cache-Control": "no-store"], body: file(files))
    }
}
