/// Completions for fish 3, with what each word and each option means.
enum FishCompletions {
    static var script: String {
        #"""
        # Printed by: token-broker completions fish

        # Whether the words of a command, $argv[1], stand before the cursor, as $argv[2] wants it: "word" for those that a word of a
        # command may follow, "explained" for those that may follow help only, "option" for those that an option may follow, or
        # the number of arguments behind them. The others are options with a value.
        function __token_broker_is
            set -l tokens (commandline -opc)
            set -e tokens[1]
            set -l helps no
            if test "$tokens[1]" = help
                set -e tokens[1]
                set helps yes
            end
            set -l typed
            while set -q tokens[1]
                switch (string join ' ' -- $typed $tokens[1])
                    case \#(CompletionWords.paths.map(quoted).joined(separator: " "))
                        set -a typed $tokens[1]
                        set -e tokens[1]
                    case '*'
                        break
                end
            end
            test "$typed" = "$argv[1]"; or return 1
            switch $argv[2]
                case word
                    test (count $tokens) = 0
                case explained
                    test (count $tokens) = 0 -a $helps = yes
                case option
                    test $helps = no; and not contains -- -- $tokens
                case '*'
                    test $helps = no; or return 1
                    set -l arguments 0
                    while set -q tokens[1]
                        if contains -- $tokens[1] $argv[3..-1]
                            set -e tokens[1]
                        else if not string match -q -- '-*' $tokens[1]
                            set arguments (math $arguments + 1)
                        end
                        set -e tokens[1]
                    end
                    test $arguments = $argv[2]
            end
        end

        \#(words)\#(options)\#(choices)
        """#
    }

    private static func quoted(_ text: String) -> String {
        "'" + text.replacing(#"\"#, with: #"\\"#).replacing("'", with: #"\'"#) + "'"
    }

    private static func condition(_ path: String, _ what: String, _ valued: [String] = []) -> String {
        "-n " + quoted((["__token_broker_is", quoted(path), what] + valued).joined(separator: " "))
    }

    private static var words: String {
        CompletionWords.all.map { word in
            let explained = word.before == "help" ? line("", "explained", word) : ""
            return explained + line(word.before, "word", word)
        }.joined()
    }

    private static func line(_ path: String, _ what: String, _ word: CompletionWords.Word) -> String {
        "complete -c token-broker -f \(condition(path, what)) -a \(quoted(word.word)) -d \(quoted(word.help))\n"
    }

    private static var options: String {
        CommandCatalog.all.flatMap { command in
            command.allOptions.map { option in
                let value =
                    option.value == nil
                    ? "" : option.choices.isEmpty ? " -r" : " -x -a \(quoted(option.choices.joined(separator: " ")))"
                return "complete -c token-broker \(condition(command.name, "option")) -l \(option.name)\(value) "
                    + "-d \(quoted(option.help))\n"
            }
        }.joined()
    }

    private static var choices: String {
        CommandCatalog.all.flatMap { command in
            command.arguments.enumerated().filter { !$0.element.choices.isEmpty }.map { place, argument in
                let condition = condition(command.name, String(place), CompletionWords.valued(command))
                return
                    "complete -c token-broker -f \(condition) -a \(quoted(argument.choices.joined(separator: " ")))\n"
            }
        }.joined()
    }
}
