import Cryptography

/// Base64url of a text, for the parts of a JWT.
package enum Base64Text {
    package static func encode(_ text: String) -> String { Base64URL.encode(Array(text.utf8)) }
}
