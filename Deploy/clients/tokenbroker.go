// Package tokenbroker is a client of token-broker for Go 1.18 or later, with the standard library only. See README.md.
package tokenbroker

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Error says why there is no token. Status is 0 where no answer came; Code and Detail are the broker's.
type Error struct {
	Status, RetryAfter      int // RetryAfter: seconds, 0 where the broker names none
	Code, Detail, RequestID string
	ErrorCode               string `json:"error_code"` // what the provider said
	Session                 struct {
		ReconnectURI string `json:"reconnect_uri"` // where the user can log in again
	}
}

func (e *Error) Error() string { return fmt.Sprintf("%d %s: %s", e.Status, e.Code, e.Detail) }

// MustLogIn tells whether only a login of the user helps.
func (e *Error) MustLogIn() bool {
	const codes = " level_not_available missing_token_container invalid_token_request unknown_account unauthenticated "
	return strings.Contains(codes, " "+e.Code+" ")
}

// Credentials are a token and what belongs to it.
type Credentials struct {
	Token, Level, ETag string
	TokenType          string   `json:"token_type"`
	ExpiresIn          *float64 `json:"expires_in"`
	asked, checked     time.Time
}

// Left is how many seconds the token is valid, counted from the moment before it was asked for.
func (c *Credentials) Left() float64 {
	if c.ExpiresIn == nil {
		return 1e18
	}
	return *c.ExpiresIn - age(c.asked)
}

func age(then time.Time) float64 { // The one clock may stand still while the machine sleeps, and the other may be set back.
	monotonic, wall := time.Since(then), time.Now().Round(0).Sub(then.Round(0))
	if wall > monotonic {
		return wall.Seconds()
	}
	return monotonic.Seconds()
}

// Request names credentials. Refused are those that the provider's API answered with 401: all callers that name the same
// ones cause one renewal. SubStatus is the API's, where it says one (TIDAL), or "": then that of an expired token.
type Request struct {
	Tenant, StorageKey, Level, SubStatus string // "": the API key's own tenant, "default", "user"
	MinTTL                               int    // seconds for which the token must be valid; 0: 60
	Refused                              *Credentials
}

// Client may be shared by goroutines. Timeout is the longest that a call takes. For MaxAge a token is given from memory
// before the broker is asked whether it is still current. Capacity is the most tokens in memory.
type Client struct {
	BaseURL, APIKey string
	Timeout, MaxAge time.Duration
	Capacity        int
	lock            sync.Mutex
	cache           map[[3]string]*Credentials
}

// New makes a client that waits up to 30 s for a token and gives it from memory for 30 s.
func New(baseURL, apiKey string) *Client {
	return &Client{strings.TrimRight(baseURL, "/"), apiKey, 30 * time.Second, 30 * time.Second, 10000,
		sync.Mutex{}, map[[3]string]*Credentials{}}
}

// Token gives credentials as the request says.
func (c *Client) Token(ctx context.Context, r Request) (*Credentials, error) {
	key := [3]string{r.Tenant, or(r.StorageKey, "default"), or(r.Level, "user")}
	if r.MinTTL == 0 {
		r.MinTTL = 60
	}
	query := url.Values{"storage_key": {key[1]}, "level": {key[2]}, "min_ttl": {strconv.Itoa(r.MinTTL)}}
	c.lock.Lock()
	known := c.cache[key]
	if known != nil && r.Refused != nil && known.ETag == r.Refused.ETag {
		delete(c.cache, key)
		known = nil
	}
	c.lock.Unlock()
	if known != nil && age(known.checked) < c.MaxAge.Seconds() && known.Left() > float64(r.MinTTL) {
		return known, nil
	}
	timeout, header := c.Timeout, http.Header{}
	if r.Refused != nil {
		known = r.Refused
		query.Set("api_error_sub_status", or(r.SubStatus, "11003"))
	} else if known != nil && timeout > 5*time.Second {
		timeout = 5 * time.Second // The token in memory is given while the broker does not answer.
	}
	if known != nil && (r.Refused != nil || known.Left() > 0) {
		header.Set("If-None-Match", known.ETag)
	}
	for end, pause := time.Now().Add(timeout), 0.2; ; pause = math.Min(2*pause, 5) {
		asked, left := time.Now(), math.Max(1, time.Until(end).Seconds())
		header.Set("Prefer", fmt.Sprintf("wait=%d", int(left)))
		limited, cancel := context.WithTimeout(ctx, seconds(left+2))
		found, err := &Credentials{asked: asked, checked: asked}, error(nil)
		answer, failure := c.get(limited, "/credentials?"+query.Encode(), r.Tenant, header)
		if failure == nil {
			err = json.NewDecoder(io.LimitReader(answer.Body, 1<<20)).Decode(found)
			answer.Body.Close()
			if found.ETag = answer.Header.Get("ETag"); err != nil {
				failure = &Error{Code: "network_error", Detail: err.Error()}
			}
		}
		cancel()
		c.lock.Lock()
		switch {
		case failure == nil:
			for other := range c.cache { // Go gives any one first.
				if len(c.cache) < c.Capacity {
					break
				}
				delete(c.cache, other)
			}
			c.cache[key] = found
		case failure.Status == 304 && known.Left() > 0:
			copied := *known
			copied.checked = asked
			if found, failure = &copied, nil; r.Refused == nil {
				c.cache[key] = found
			}
		case !failure.isPassing():
			delete(c.cache, key)
		case r.Refused == nil && known != nil && known.Left() > 0:
			found, failure = known, nil
		}
		c.lock.Unlock()
		if failure == nil {
			return found, nil
		}
		wait := failure.pause(pause)
		if ctx.Err() != nil || !failure.isPassing() || time.Now().Add(wait).After(end) {
			return nil, failure
		}
		time.Sleep(wait)
	}
}

// Events calls hear with each event, without end until the context ends, hear fails, or the broker refuses. It connects
// again after a fault, and goes on after lastID. Tokens that an event replaces are forgotten.
func (c *Client) Events(ctx context.Context, tenant, lastID string, hear func(id, name string, data map[string]any) error) error {
	for pause, retry := 1.0, 1.0; ; pause = math.Min(2*pause, 30) {
		limited, cancel := context.WithCancel(ctx)
		answer, failure := c.get(limited, "/events", tenant, http.Header{"Last-Event-ID": {lastID}})
		if failure == nil {
			silence := time.AfterFunc(45*time.Second, cancel) // The broker sends a comment after 15 seconds.
			lines, fields := bufio.NewScanner(answer.Body), map[string]string{}
			for lines.Buffer(nil, 1<<20); lines.Scan(); silence.Reset(45 * time.Second) {
				if name, value, _ := strings.Cut(lines.Text(), ": "); lines.Text() != "" {
					fields[name] = value
					continue
				}
				if milliseconds, err := strconv.ParseFloat(fields["retry"], 64); err == nil {
					retry = milliseconds / 1000
				}
				if data := map[string]any{}; json.Unmarshal([]byte(fields["data"]), &data) == nil {
					c.forget(fields["event"], data)
					if err := hear(fields["id"], fields["event"], data); err != nil {
						cancel()
						return err
					}
				}
				lastID, fields, pause = or(fields["id"], lastID), map[string]string{}, retry
			}
			answer.Body.Close()
			failure = &Error{}
		}
		cancel()
		if ctx.Err() != nil || failure.Status < 500 && !failure.isPassing() {
			return failure
		}
		select {
		case <-time.After(failure.pause(pause)):
		case <-ctx.Done():
		}
	}
}

func (c *Client) forget(event string, data map[string]any) {
	c.lock.Lock()
	defer c.lock.Unlock()
	for key, known := range c.cache {
		concerns := key[1] == data["storage_key"] && (key[0] == "" || key[0] == data["tenant"])
		isNew := event == "credentials.updated" && known.ETag != fmt.Sprintf("\"%.0f\"", data["version"])
		if event == "stream.reset" || concerns && (isNew || event == "credentials.deauthorized") {
			delete(c.cache, key)
		}
	}
}

// get makes one request. The error has the status of an answer other than 200, and 0 without one.
func (c *Client) get(ctx context.Context, path, tenant string, header http.Header) (*http.Response, *Error) {
	request, err := http.NewRequestWithContext(ctx, "GET", c.BaseURL+path, nil)
	if err != nil {
		return nil, &Error{Status: 400, Code: "invalid_request", Detail: err.Error()}
	}
	request.Header = header.Clone()
	request.Header.Set("Authorization", "Bearer "+c.APIKey)
	if tenant != "" {
		request.Header.Set("X-Tenant", tenant)
	}
	answer, err := client.Do(request)
	if err != nil {
		return nil, &Error{Code: "network_error", Detail: "The broker does not answer: " + err.Error()}
	}
	if answer.StatusCode == 200 {
		return answer, nil
	}
	defer answer.Body.Close()
	failure := &Error{Detail: "The broker answered " + answer.Status}
	json.NewDecoder(io.LimitReader(answer.Body, 1<<20)).Decode(failure) // A proxy's answer is no JSON.
	failure.Status, failure.RequestID = answer.StatusCode, answer.Header.Get("X-Request-ID")
	failure.RetryAfter, _ = strconv.Atoi(answer.Header.Get("Retry-After"))
	return nil, failure
}

// The API key is for the broker only.
var client = http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

func (e *Error) isPassing() bool { // A 502 without a code is a proxy's.
	return e.Status == 0 || e.Status == 429 || e.Status == 503 || e.Status >= 500 && e.Code == ""
}

func (e *Error) pause(otherwise float64) time.Duration {
	if e.RetryAfter > 0 {
		otherwise = float64(e.RetryAfter)
	}
	return seconds(otherwise * (1 + rand.Float64()/10))
}

func seconds(count float64) time.Duration { return time.Duration(count * float64(time.Second)) }

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}
