// Calls the client for Go, one command of standard input at a time (see ../clients.py).
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"driver/tokenbroker"
)

func number(word string) int {
	value, err := strconv.Atoi(word)
	if err != nil {
		panic(err)
	}
	return value
}

// failure is an error as the test reads it.
func failure(err error) string {
	var failure *tokenbroker.Error
	if !errors.As(err, &failure) {
		panic(err)
	}
	after, must := "-", "no"
	if failure.RetryAfter > 0 {
		after = strconv.Itoa(failure.RetryAfter)
	}
	if failure.MustLogIn() {
		must = "yes"
	}
	code := failure.Code
	if code == "" {
		code = "-"
	}
	return fmt.Sprintf("error %d %s %s %s", failure.Status, code, after, must)
}

func main() {
	ctx := context.Background()
	var client *tokenbroker.Client
	var last, kept tokenbroker.Credentials
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		words := strings.Fields(lines.Text())
		switch words[0] {
		case "client":
			client = tokenbroker.New(os.Args[1], os.Args[2])
			client.MaxAge = float64(number(words[1]))
			client.Timeout = float64(number(words[2]))
			fmt.Println("ok")
		case "token":
			client.MinTTL = float64(number(words[2]))
			found, err := client.Token(ctx, words[1], tokenbroker.Credentials{}, "")
			if err != nil {
				fmt.Println(failure(err))
				continue
			}
			last = found
			fmt.Println("token", found.ETag, found.Token)
		case "keep":
			kept = last
			fmt.Println("ok")
		case "refuse":
			tags := make([]string, number(words[2]))
			var group sync.WaitGroup
			for index := range tags {
				group.Add(1)
				go func(index int) {
					defer group.Done()
					found, err := client.Token(ctx, words[1], kept, "11003")
					if err != nil {
						tags[index] = failure(err)
						return
					}
					tags[index] = found.ETag
				}(index)
			}
			group.Wait()
			fmt.Println("tokens", strings.Join(tags, " "))
		case "listen":
			go func(client *tokenbroker.Client) {
				err := client.Events(ctx, "", func(id, name string, data map[string]any) {
					fmt.Println("event", id, name, data["storage_key"])
				})
				panic(err)
			}(client)
			fmt.Println("ok")
		}
	}
}
