// An app that uses golang.org/x/oauth2: main BROKER CLIENT_ID SECRET REDIRECT_URI BROWSER...
//
// An empty secret makes a public client. BROWSER is the command that a user logs in with.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/oauth2"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	broker, clientID, secret, redirectURI, browser := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5:]
	config := oauth2.Config{
		ClientID: clientID, ClientSecret: secret, RedirectURL: redirectURI,
		Endpoint: oauth2.Endpoint{AuthURL: broker + "/oauth2/authorize", TokenURL: broker + "/oauth2/token"},
	}
	verifier := "a-verifier-of-the-test-with-more-than-43-characters"
	digest := sha256.Sum256([]byte(verifier))
	address := config.AuthCodeURL("state-1",
		oauth2.SetAuthURLParam("code_challenge", base64.RawURLEncoding.EncodeToString(digest[:])),
		oauth2.SetAuthURLParam("code_challenge_method", "S256"))
	output, err := exec.Command(browser[0], append(browser[1:], address, redirectURI)...).Output()
	must(err)
	answer, err := url.Parse(strings.TrimSpace(string(output)))
	must(err)
	if answer.Query().Get("state") != "state-1" || answer.Query().Get("iss") != broker {
		must(fmt.Errorf("the answer has another state or issuer: %s", answer))
	}
	context := context.Background()
	token, err := config.Exchange(context, answer.Query().Get("code"), oauth2.SetAuthURLParam("code_verifier", verifier))
	must(err)
	fmt.Println("access token", token.AccessToken)
	expired := &oauth2.Token{RefreshToken: token.RefreshToken, Expiry: time.Now().Add(-time.Hour)}
	refreshed, err := config.TokenSource(context, expired).Token()
	must(err)
	if refreshed.AccessToken == "" || refreshed.RefreshToken == token.RefreshToken {
		must(fmt.Errorf("the refresh has brought nothing new"))
	}
	fmt.Println("refreshed")
	// The library has no call for RFC 7009.
	revoked, err := http.PostForm(broker+"/oauth2/revoke",
		url.Values{"client_id": {clientID}, "client_secret": {secret}, "token": {refreshed.RefreshToken}})
	must(err)
	if revoked.StatusCode != 200 {
		must(fmt.Errorf("the revocation is answered %s", revoked.Status))
	}
	_, err = config.TokenSource(context, &oauth2.Token{RefreshToken: refreshed.RefreshToken}).Token()
	if err == nil || !strings.Contains(err.Error(), "invalid_grant") {
		must(fmt.Errorf("a revoked token is not refused: %v", err))
	}
	fmt.Println("revoked")
}
