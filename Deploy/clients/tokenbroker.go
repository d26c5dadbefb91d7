// Package tokenbroker is a client of token-broker for Go 1.18 or later, with the standard library only. See README.md.
package tokenbroker

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

const logIn = " level_not_available missing_token_container invalid_token_request unknown_account unauthenticated "

// Error says why there is no token. Status is 0 where no answer came; Code and Detail are the broker's.
type Error struct {
	Status, RetryAfter      int // RetryAfter: seconds, 0 where the broker names none
	Code, Detail, RequestID string
	ErrorCode               string         `json:"error_code"` // what the provider said
	Session                 map[string]any // reconnect_uri: where the user can log in again
}

func (e *Error) Error() string   { return fmt.Sprintf("%d %s: %s", e.Status, e.Code, e.Detail) }
func (e *Error) MustLogIn() bool { return strings.Contains(logIn, " "+e.Code+" ") } // Only a login of the user helps.
func (e Error) passes() bool {
	return e.Status == 0 || e.Status == 429 || e.Status == 503 || e.Status >= 500 && e.Code == ""
}

// Credentials are a token and what belongs to it. It is valid for Left seconds, counted from before the request.
type Credentials struct {
	Token, Level, ETag string
	TokenType          string  `json:"token_type"`
	ExpiresIn          float64 `json:"expires_in"` // infinite where the token has no end
	asked, checked     time.Time
}

func (c Credentials) Left() float64 { return c.ExpiresIn - age(c.asked) }

func age(t time.Time) float64 { // The one clock may stand still while the machine sleeps, and the other be set back.
	return math.Max(time.Since(t).Seconds(), time.Since(t.Round(0)).Seconds())
}

// Client may be shared by goroutines. It is for one tenant and level.
type Client struct {
	BaseURL, APIKey, Tenant, Level string  // Tenant: for API keys of several. Level: user or client
	Timeout, MaxAge, MinTTL        float64 // seconds: of a call; without a comparison; for which a token must be valid
	memory                         map[string]Credentials
	lock                           sync.Mutex
}

// New makes a client for users' tokens.
func New(baseURL, apiKey string) *Client {
	return &Client{strings.TrimRight(baseURL, "/"), apiKey, "", "user", 30, 30, 60, map[string]Credentials{}, sync.Mutex{}}
}

// Token gives credentials. Refused are empty, or those that the provider's API answered with 401: all callers that name
// the same ones cause one renewal. SubStatus is the API's, where it says one (TIDAL), else 11003.
func (c *Client) Token(ctx context.Context, key string, refused Credentials, subStatus string) (Credentials, error) {
	c.lock.Lock()
	known, compared, timeout := c.memory[key], refused, c.Timeout
	c.lock.Unlock()
	query := url.Values{"storage_key": {key}, "level": {c.Level}, "min_ttl": {fmt.Sprint(c.MinTTL)}}
	if known.ETag != refused.ETag && age(known.checked) < c.MaxAge && known.Left() > c.MinTTL {
		return known, nil
	} else if refused.ETag != "" {
		known = Credentials{}
		query.Set("api_error_sub_status", subStatus)
	} else if known.Left() > 0 { // It is given while the broker does not answer.
		compared, timeout = known, math.Min(5, timeout)
	}
	for began, pause := time.Now(), 0.2; ; pause = math.Min(2*pause, 5) {
		found, left := Credentials{ExpiresIn: math.Inf(1), asked: time.Now()}, math.Max(1, timeout-age(began))
		header := http.Header{"Prefer": {fmt.Sprint("wait=", int(left))}, "If-None-Match": strings.Fields(compared.ETag)}
		answer := c.get(ctx, "/credentials?"+query.Encode(), header, left+2, func(line []byte) error {
			return json.Unmarshal(line, &found) // The body is one line.
		})
		found.ETag, found.checked, compared.checked = header.Get("ETag"), found.asked, found.asked
		if answer.Status == 304 && compared.Left() > 0 {
			found, answer.Status = compared, 200
		} else if answer.Status == 200 && found.Token == "" {
			answer = &Error{Code: "network_error", Detail: "The broker's answer has broken off."}
		}
		wait := math.Max(pause, float64(answer.RetryAfter)) * (1 + rand.Float64()/10)
		if answer.passes() && known.Left() > 0 {
			return known, nil
		} else if answer.passes() && age(began)+wait <= timeout && ctx.Err() == nil {
			time.Sleep(time.Duration(wait * 1e9))
			continue
		}
		c.lock.Lock()
		defer c.lock.Unlock()
		if delete(c.memory, key); answer.Status != 200 {
			return Credentials{}, answer
		} else if len(c.memory) >= 10000 { // It has a bound.
			c.memory = map[string]Credentials{}
		}
		if found.ETag != refused.ETag { // Else the broker has no newer one.
			c.memory[key] = found
		}
		return found, nil
	}
}

// Events calls hear with each event after lastID, until the context ends or the broker refuses.
func (c *Client) Events(ctx context.Context, lastID string, hear func(id, name string, data map[string]any)) error {
	for pause, retry := 1.0, 1000.0; ; pause = math.Min(2*pause, 30) {
		fields := map[string]string{"id": lastID}
		answer := c.get(ctx, "/events", http.Header{"Last-Event-Id": {lastID}}, 45, func(line []byte) error {
			name, value, _ := strings.Cut(string(line), ": ")
			if fields[name] = value; len(line) > 0 {
				return nil // The broker sends a comment after 15 seconds.
			}
			if data := map[string]any{}; json.Unmarshal([]byte(fields["data"]), &data) == nil {
				isEnd := fields["event"] == "credentials.updated" || fields["event"] == "credentials.deauthorized"
				c.lock.Lock()
				if key, _ := data["storage_key"].(string); fields["event"] == "stream.reset" {
					c.memory = map[string]Credentials{}
				} else if isEnd && c.memory[key].ETag != fmt.Sprintf("\"%.0f\"", data["version"]) {
					delete(c.memory, key)
				}
				c.lock.Unlock()
				hear(fields["id"], fields["event"], data)
			}
			fmt.Sscan(fields["retry"], &retry) // milliseconds; it stays where there is none
			lastID, fields, pause = fields["id"], map[string]string{"id": fields["id"]}, retry/1000
			return ctx.Err()
		})
		if ctx.Err() != nil || !answer.passes() && answer.Status < 500 && answer.Status != 200 {
			return answer
		}
		time.Sleep(time.Duration(math.Max(pause, float64(answer.RetryAfter)) * (1 + rand.Float64()/10) * 1e9))
	}
}

// get makes one request, and reads an answer of status 200 by lines. It ends when none comes for so many seconds. The
// answer's ETag comes to the header fields.
func (c *Client) get(ctx context.Context, path string, head http.Header, wait float64, read func([]byte) error) *Error {
	limited, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(time.Duration(wait*1e9), cancel)
	defer silence.Stop()
	request, err := http.NewRequestWithContext(limited, "GET", c.BaseURL+path, nil)
	if err != nil {
		return &Error{Status: 400, Code: "invalid_request", Detail: err.Error()}
	}
	request.Header = head
	head["Authorization"], head["X-Tenant"] = []string{"Bearer " + c.APIKey}, strings.Fields(c.Tenant)
	answer, err := http.DefaultTransport.RoundTrip(request) // No redirect is followed: the API key is for the broker.
	if err != nil {
		return &Error{Code: "network_error", Detail: "The broker does not answer: " + err.Error()}
	}
	defer answer.Body.Close()
	lines, result := bufio.NewScanner(answer.Body), &Error{Detail: "The broker answered " + answer.Status}
	if answer.StatusCode != 200 {
		read = func(line []byte) error { return json.Unmarshal(line, result) } // A proxy's answer is no JSON.
	}
	for lines.Buffer(nil, 1<<20); err == nil && lines.Scan(); silence.Reset(time.Duration(wait * 1e9)) {
		err = read(lines.Bytes())
	}
	head["Etag"], result.Status = answer.Header["Etag"], answer.StatusCode
	result.RequestID = answer.Header.Get("X-Request-ID")
	fmt.Sscan(answer.Header.Get("Retry-After"), &result.RetryAfter)
	return result
}
