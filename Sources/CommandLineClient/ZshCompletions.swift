/// Completions for zsh, with what each word and each option means.
enum ZshCompletions {
    static var script: String {
        #"""
        #compdef token-broker
        # Printed by: token-broker completions zsh
        _token_broker() {
            local typed="" next="" valued=" " runs="" first=2 index position=0
            local previous="$words[CURRENT - 1]" current="$words[CURRENT]"
            local -a options found choices
            # Behind help stand the words of a command.
            if [[ $words[2] == help && $CURRENT -gt 2 ]]; then first=3; fi
            for ((index = first; index < CURRENT; index++)); do
                next="${typed:+$typed }$words[index]"
                case "$next" in
        \#(paths)) typed="$next" ;;
                (*) break ;;
                esac
            done
            if [[ $first == 2 ]]; then
                case "$typed" in
        \#(commands)        esac
            fi
            for (( ; index < CURRENT; index++)); do
                next="$words[index]"
                if [[ $next == "--" ]]; then
                    if [[ -n $runs ]]; then
                        shift $index words
                        ((CURRENT -= index))
                        _normal
                    else
                        _files
                    fi
                    return
                elif [[ $valued == *" $next "* ]]; then
                    ((index++))
                elif [[ $next != -* ]]; then
                    ((position++))
                fi
            done
            if [[ $current == --*=* ]]; then
                previous="${current%%=*}"
                compset -P '*='
            fi
            if [[ $valued == *" $previous "* ]]; then
                case "$typed $previous" in
        \#(choices { $0.contains(" --") })        esac
                if (($#choices)); then compadd -a choices; else _files; fi
                return
            fi
            if [[ $current == -* ]]; then
                _describe -o option options
                return
            fi
            if [[ $position == 0 ]]; then
                case "$typed" in
        \#(groups)        esac
                if [[ $first == 3 && -z $typed ]]; then
                    found+=(
        \#(described("help"))            )
                fi
            fi
            if [[ $first == 2 ]]; then
                case "$typed $position" in
        \#(choices { !$0.contains(" --") })        esac
            fi
            if (($#found)); then _describe command found; fi
            if (($#choices)); then compadd -a choices; fi
            if ((!$#found && !$#choices)); then _files; fi
        }
        if [[ $funcstack[1] == _token-broker ]]; then
            _token_broker "$@"
        else
            compdef _token_broker token-broker
        fi

        """#
    }

    private static var paths: String {
        "        (" + CompletionWords.paths.map(ShellWord.inQuotes).joined(separator: " | \\\n        ")
    }

    /// `'name:what it is'` for `_describe`.
    private static func described(_ name: String, _ help: String) -> String {
        ShellWord.inQuotes("\(name):\(help)")
    }

    private static var commands: String {
        CommandCatalog.all.map { command in
            let options = command.allOptions.map { "            " + described("--" + $0.name, $0.help) + "\n" }
            let valued = CompletionWords.valued(command).joined(separator: " ")
            return "        (\(ShellWord.inQuotes(command.name))) valued=\" \(valued) \""
                + (command.takesCommand ? " runs=1" : "") + " options=(\n\(options.joined())        ) ;;\n"
        }.joined()
    }

    private static var groups: String {
        CompletionWords.groups.map { before, _ in
            "        (\(ShellWord.inQuotes(before))) found=(\n\(described(before))        ) ;;\n"
        }.joined()
    }

    /// A line for each word of commands behind `before`.
    private static func described(_ before: String) -> String {
        CompletionWords.all.filter { $0.before == before }.map { "            \(described($0.word, $0.help))\n" }
            .joined()
    }

    private static func choices(_ isWanted: (String) -> Bool) -> String {
        CompletionWords.choices.filter { isWanted($0.pattern) }.map { pattern, words in
            "        (\(ShellWord.inQuotes(pattern))) choices=(\(words.joined(separator: " "))) ;;\n"
        }.joined()
    }
}
