import ExternalText
import HTTPCodec
import HTTPServer
import JSON

extension ControlInterface {
    /// What can be controlled, for people who read.
    struct Control {
        let method: String
        /// With `{name}` for a part that differs.
        let path: String
        let meaning: String

        fileprivate init(_ method: String, _ path: String, _ meaning: String) {
            self.method = method
            self.path = "/_control" + path
            self.meaning = meaning
        }

        /// What stands behind `/_control` in the path.
        var segments: [WireText] { path.utf8.split(separator: UInt8(ascii: "/")).dropFirst().map { WireText($0) } }
    }

    static let controls: [Control] = [
        .init("GET", "", "this list"),
        .init("DELETE", "", "forgets everything and begins anew"),
        .init("GET", "/faults", "the faults that wait"),
        .init("POST", "/faults", "has the next requests fail: endpoint, grant, mode, times, status, body …"),
        .init("DELETE", "/faults", "removes the faults"),
        .init("GET", "/random_faults", "the faults that come at random"),
        .init("PUT", "/random_faults", "sets them: seed, endpoint, grant, {mode}_per_mille …"),
        .init("DELETE", "/random_faults", "ends them"),
        .init("GET", "/requests", "the requests so far, and how many of each kind"),
        .init("DELETE", "/requests", "forgets them"),
        .init("GET", "/ledger", "every login with its tokens"),
        .init("GET", "/ledger/summary", "the same in numbers"),
        .init("GET", "/ledger/users/{user_id}", "the logins of one user"),
        .init("POST", "/sessions", "opens sessions without a browser: user, or prefix and count; client_id"),
        .init("POST", "/revoke", "ends all sessions of a user: user or user_id"),
        .init("POST", "/expire", "has tokens expire now: what, user or user_id"),
        .init("POST", "/advance", "sets the clock forward: seconds"),
        .init("POST", "/introspect", "what an access token is: token"),
        .init("POST", "/accounts", "sets the state of an account: user, state"),
        .init("GET", "/keys", "the keys that sign tokens"),
        .init("POST", "/keys/publish", "publishes the next key"),
        .init("POST", "/keys/rotate", "signs with the next key"),
    ]

    static var list: Response {
        .json(.ok) { writer in
            writer.name("controls")
            writer.array { writer in
                for control in controls {
                    writer.object { writer in
                        writer.member("method", control.method)
                        writer.member("path", control.path)
                        writer.member("meaning", control.meaning)
                    }
                }
            }
        }
    }

    /// A line for each in the program's help.
    static var helpText: String {
        controls.map { control in
            let call = "\(control.method) \(control.path)"
            return "  " + call + String(repeating: " ", count: max(1, 38 - call.count)) + control.meaning
        }.joined(separator: "\n")
    }
}
