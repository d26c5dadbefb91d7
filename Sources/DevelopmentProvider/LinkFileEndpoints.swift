import HTTPCodec
import HTTPServer
import JSON

/// The files by which devices learn which apps open links of the provider's host.
enum LinkFileEndpoints {
    /// The statements of Digital Asset Links, for Android.
    static func assetLinks(_ configuration: ProviderConfiguration) -> EndpointResult {
        var writer = JSONWriter()
        writer.array { writer in
            for app in configuration.androidApps {
                writer.object { writer in
                    writer.member("relation", ["delegate_permission/common.handle_all_urls"])
                    writer.name("target")
                    writer.object { writer in
                        writer.member("namespace", "android_app")
                        writer.member("package_name", app.packageName)
                        writer.member("sha256_cert_fingerprints", app.fingerprints)
                    }
                }
            }
        }
        return file(writer.bytes)
    }

    /// The associated domains of Apple's systems.
    static func appleAssociation(_ configuration: ProviderConfiguration) -> EndpointResult {
        file(
            JSONWriter.object { writer in
                writer.name("applinks")
                writer.object { writer in
                    writer.name("details")
                    writer.array { writer in
                        guard !configuration.appleApps.isEmpty else { return }
                        writer.object { writer in
                            writer.member("appIDs", configuration.appleApps)
                            writer.name("components")
                            writer.array { writer in writer.object { $0.member("/", "*") } }
                        }
                    }
                }
            })
    }

    private static func file(_ json: [UInt8]) -> EndpointResult {
        EndpointResult(
            Response(
                .ok, fields: ["Content-Type": "application/json", "Cache-Control": "max-age=3600"], body: json))
    }
}
