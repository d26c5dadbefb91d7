extension Unicode.Scalar {
    /// Whether it is a control character, a line end, or a mark that changes the direction of the text after it: what a text for
    /// people must not have.
    package var changesWhatIsShown: Bool {
        switch value {
        case 0...0x1f, 0x7f...0x9f, 0x061c, 0x200e, 0x200f, 0x2028...0x202e, 0x2066...0x2069: true
        default: false
        }
    }
}
