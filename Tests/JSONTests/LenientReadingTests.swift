import JSON
import Testing

@Suite struct `The beginning of a text that is not JSON` {
    @Test(arguments: [
        (#"{"a": 1} and more"#, #"{"a": 1}"#), (#"{"a": 1}{"a": 2}"#, #"{"a": 1}"#),
        (#"{"a": 1, "a": 1, "b": 2}"#, #"{"a": 1, "b": 2}"#), (#"{"a": 1, "a": 2, "b": 2}"#, #"{"b": 2}"#),
        (#"{"a": 1, "a": 2, "a": 1, "b": 2}"#, #"{"b": 2}"#),
        (#"{"a": {"c": 1, "c": 2}, "b": 2}"#, #"{"a": {}, "b": 2}"#), (#" {"a": 1}"#, #"{"a": 1}"#),
    ])
    func `is read without what is ambiguous in it`(text: String, expected: String) throws {
        #expect(try JSONValue(beginning: Array(text.utf8)) == JSONValue(parsing: Array(expected.utf8)))
    }

    @Test(arguments: ["", "{", #"{"a": 1"#, #"{"a": "1"#, #"{"a": 1,"#, #"x {"a": 1}"#])
    func `is not read where it does not end`(text: String) {
        #expect(throws: JSONValue.Fault.self) { try JSONValue(beginning: Array(text.utf8)) }
    }
}
