import ExternalText
import JSON

/// The apps that open links of the broker's host.
package struct AppLinks: Sendable, Equatable {
    /// The certificates of each app for Android, by its package name.
    private var android: [WireText: Set<WireText>] = [:]
    private var apple: Set<WireText> = []
    /// About how long the two files are together, in bytes.
    package private(set) var size = 0

    package init() {}

    /// Adds the apps of a client. An app that several clients have is one app, with the certificates of all.
    package mutating func add(_ settings: AppClient.Settings) {
        for app in settings.androidApps {
            android[WireText(app.packageName), default: []].formUnion(app.fingerprints.map { WireText($0) })
        }
        apple.formUnion(settings.appleApps.map { WireText($0) })
        size += Self.size(of: settings)
    }

    /// By about how much the apps of a client make the files longer, in bytes, at most.
    package static func size(of settings: AppClient.Settings) -> Int {
        settings.androidApps.reduce(0) { size, app in
            size + app.packageName.utf8.count + statementBytes + app.fingerprints.reduce(0) { $0 + $1.utf8.count + 3 }
        } + settings.appleApps.reduce(0) { $0 + $1.utf8.count + 3 }
    }

    /// The length of a statement without name and certificates.
    private static let statementBytes = 160

    /// The content of `assetlinks.json`: a list of statements of Digital Asset Links, in the order of their packages.
    package var assetLinks: [UInt8] {
        var json = JSONWriter()
        json.array { json in
            for (name, fingerprints) in android.sorted(by: { $0.key < $1.key }) {
                json.object { json in
                    json.member("relation", ["delegate_permission/common.handle_all_urls"])
                    json.name("target")
                    json.object { json in
                        json.member("namespace", "android_app")
                        json.member("package_name", name.text)
                        json.member("sha256_cert_fingerprints", fingerprints.sorted().map(\.text))
                    }
                }
            }
        }
        return json.bytes
    }

    /// The content of `apple-app-site-association`, in the form of iOS 13 and later.
    /// - Parameter browserPaths: patterns of paths that no app opens. The first pattern that fits a link counts.
    package func appleAssociation(browserPaths: [String]) -> [UInt8] {
        JSONWriter.object { json in
            json.name("applinks")
            json.object { json in
                json.name("details")
                json.array { json in
                    guard !apple.isEmpty else { return }
                    json.object { json in
                        json.member("appIDs", apple.sorted().map(\.text))
                        json.name("components")
                        json.array { json in
                            for path in browserPaths {
                                json.object { json in
                                    json.member("/", path)
                                    json.member("exclude", true)
                                }
                            }
                            json.object { $0.member("/", "*") }
                        }
                    }
                }
            }
        }
    }
}
