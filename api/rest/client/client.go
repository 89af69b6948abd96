// Package client calls the agent's REST API over its unix socket or TCP.
//
// A Client is safe for concurrent use and keeps connections open between calls; it starts no
// goroutine of its own. Every method returns the model of the success code, or an error that is
// one of
//   - *UnreachableError: no agent answers at the address,
//   - *Error: the agent answered with another code; NotFound and StatusCode read it,
//   - the context's error.
package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/hawser-net/hawser/api/rest/internal/raw"
)

// DefaultSocket is the agent's socket unless configured otherwise.
const DefaultSocket = "/var/run/cilium/cilium.sock"

// EnvSocket is the environment variable that names another socket.
const EnvSocket = "CILIUM_SOCK"

const (
	connectTimeout = 30 * time.Second
	// requestTimeout bounds a call whose context has no deadline, from request to the end of the
	// body. The event stream has no bound.
	requestTimeout = 90 * time.Second
	// maxResponseBytes bounds what is read of a response. The largest are maps with some hundred
	// thousand rows.
	maxResponseBytes = 1 << 30
	maxErrorBytes    = 64 << 10
)

// Host returns the address to use: explicit if it is not empty, else what the environment names,
// else the default socket.
func Host(explicit string, getenv func(string) string) string {
	if explicit != "" {
		return explicit
	}
	if env := getenv(EnvSocket); env != "" {
		return env
	}
	return DefaultSocket
}

// Client calls one agent.
type Client struct {
	host string
	http *http.Client
	raw  *raw.Client
}

// New returns a client of the agent at host: a path or unix:///path of a unix socket, or
// tcp://address:port. An empty host is the default socket. It does not connect; only a malformed
// host is an error.
func New(host string) (*Client, error) {
	host = cmp.Or(host, DefaultSocket)
	network, address, err := parseHost(host)
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: connectTimeout}
	c := &Client{host: network + "://" + address}
	c.http = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, address)
		},
		IdleConnTimeout: requestTimeout,
	}}
	// The name in the URL is only for the Host header; the dialer decides where to connect.
	c.raw, err = raw.NewClient("http://localhost/v1", raw.WithHTTPClient(c.http), raw.WithRequestEditorFn(dropEmptyQuery))
	if err != nil {
		return nil, err
	}
	return c, nil
}

// dropEmptyQuery removes query parameters without a value: the generated client sends every one
// that is a plain string, but absent and empty need not be the same to an agent.
func dropEmptyQuery(_ context.Context, req *http.Request) error {
	query := req.URL.Query()
	for name, values := range query {
		if len(values) == 1 && values[0] == "" {
			delete(query, name)
		}
	}
	req.URL.RawQuery = query.Encode()
	return nil
}

func parseHost(host string) (network, address string, err error) {
	if strings.HasPrefix(host, "/") {
		return "unix", host, nil
	}
	scheme, rest, ok := strings.Cut(host, "://")
	if !ok {
		return "", "", fmt.Errorf("agent address %q is neither unix:///path, tcp://address:port nor an absolute path", host)
	}
	switch scheme {
	case "unix":
		if !strings.HasPrefix(rest, "/") {
			return "", "", fmt.Errorf("agent address %q: the socket's path must be absolute, as unix:///path", host)
		}
		return "unix", rest, nil
	case "tcp", "http":
		rest = strings.TrimSuffix(rest, "/")
		if _, _, err := net.SplitHostPort(rest); err != nil {
			return "", "", fmt.Errorf("agent address %q: %w", host, err)
		}
		return "tcp", rest, nil
	}
	return "", "", fmt.Errorf("agent address %q: unknown scheme %q, want unix or tcp", host, scheme)
}

// Host returns the address of the agent in the form of a URL.
func (c *Client) Host() string { return c.host }

// Close closes idle connections. The client stays usable.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Error is an answer of the agent other than success.
type Error struct {
	// Method and Path are those of the request.
	Method, Path string
	// Code is the HTTP status.
	Code int
	// Message is the cause in the agent's words.
	Message string
}

// Error returns the agent's message with its code.
func (e *Error) Error() string {
	msg := e.Message
	if msg == "" {
		if msg = http.StatusText(e.Code); msg == "" {
			msg = "no reason given"
		}
	}
	return fmt.Sprintf("%s (%s %s: %d)", msg, e.Method, e.Path, e.Code)
}

// StatusCode returns the code of the *Error in err's chain, or 0.
func StatusCode(err error) int {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

// NotFound reports whether err is the agent's answer that the thing asked for does not exist.
func NotFound(err error) bool { return StatusCode(err) == http.StatusNotFound }

// UnreachableError means that no agent answers.
type UnreachableError struct {
	// Host is the address tried, in the form of a URL.
	Host string
	// Err is what the connection attempt or the broken connection gave.
	Err error
}

// Unwrap returns the cause.
func (e *UnreachableError) Unwrap() error { return e.Err }

// Error names the problem and what to do about it.
func (e *UnreachableError) Error() string {
	var why string
	switch {
	case errors.Is(e.Err, fs.ErrNotExist):
		why = "the socket does not exist: start hawser-agent on this node, or name the socket of a running one"
	case errors.Is(e.Err, syscall.ECONNREFUSED):
		why = "nothing listens there: the agent has stopped; start hawser-agent and look into its log"
	case errors.Is(e.Err, fs.ErrPermission):
		why = "permission denied: use root or join the group that owns the socket"
	case errors.Is(e.Err, os.ErrDeadlineExceeded):
		why = "it does not answer in time: look into the agent's log"
	default:
		why = e.Err.Error()
	}
	return fmt.Sprintf("cannot reach the Hawser agent at %s: %s", e.Host, why)
}

// Unreachable reports whether err means that no agent answers.
func Unreachable(err error) bool {
	var e *UnreachableError
	return errors.As(err, &e)
}

// request is an operation of the generated client with all of its arguments but the context.
type request func(context.Context, ...raw.RequestEditorFn) (*http.Response, error)

// with gives an operation its argument, with2 its two.
func with[A any](op func(context.Context, A, ...raw.RequestEditorFn) (*http.Response, error), a A) request {
	return func(ctx context.Context, edit ...raw.RequestEditorFn) (*http.Response, error) {
		return op(ctx, a, edit...)
	}
}

func with2[A, B any](op func(context.Context, A, B, ...raw.RequestEditorFn) (*http.Response, error), a A, b B) request {
	return func(ctx context.Context, edit ...raw.RequestEditorFn) (*http.Response, error) {
		return op(ctx, a, b, edit...)
	}
}

// call bounds a request in time and hands the response of do to read if its code is one of codes.
func call(ctx context.Context, c *Client, codes []int, do request, read func(*http.Response) error) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, requestTimeout)
		defer cancel()
	}
	return stream(ctx, c, codes, do, read)
}

// stream is call without a bound in time.
func stream(ctx context.Context, c *Client, codes []int, do request, read func(*http.Response) error) error {
	resp, err := do(ctx)
	if err != nil {
		return c.transportError(ctx, err)
	}
	defer resp.Body.Close()
	for _, code := range codes {
		if resp.StatusCode == code {
			if read == nil {
				_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxErrorBytes))
				return nil
			}
			return read(resp)
		}
	}
	return responseError(resp)
}

func (c *Client) transportError(ctx context.Context, err error) error {
	var urlErr *url.Error
	if !errors.As(err, &urlErr) {
		return err // the request could not be built
	}
	if cause := ctx.Err(); cause != nil {
		return fmt.Errorf("request to the agent at %s: %w", c.host, cause)
	}
	return &UnreachableError{Host: c.host, Err: urlErr.Err}
}

func responseError(resp *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBytes))
	e := &Error{Code: resp.StatusCode}
	if resp.Request != nil {
		e.Method, e.Path = resp.Request.Method, resp.Request.URL.Path
	}
	if json.Unmarshal(body, &e.Message) != nil {
		e.Message = strings.TrimSpace(string(body))
	}
	return e
}

// get calls an operation that answers 200 or 201 with a model.
func get[T any](ctx context.Context, c *Client, do request) (T, error) {
	var out T
	err := call(ctx, c, []int{http.StatusOK, http.StatusCreated}, do, func(resp *http.Response) error {
		return decode(resp, &out)
	})
	return out, err
}

// list is get for lists; the list is never nil.
func list[T any](ctx context.Context, c *Client, do request) ([]T, error) {
	out, err := get[[]T](ctx, c, do)
	if err != nil {
		return nil, err
	}
	if out == nil {
		out = []T{}
	}
	return out, nil
}

// run calls an operation that answers 200 with nothing to read.
func run(ctx context.Context, c *Client, do request) error {
	return call(ctx, c, []int{http.StatusOK}, do, nil)
}

// remove calls an operation that answers 200, or 206 with a number of errors.
func remove(ctx context.Context, c *Client, do request) (int, error) {
	var errs int
	err := call(ctx, c, []int{http.StatusOK, http.StatusPartialContent}, do, func(resp *http.Response) error {
		if resp.StatusCode == http.StatusOK {
			return nil
		}
		return decode(resp, &errs)
	})
	return errs, err
}

func decode(resp *http.Response, into any) error {
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxResponseBytes)).Decode(into); err != nil {
		return fmt.Errorf("answer of the agent to %s %s: %w", resp.Request.Method, resp.Request.URL.Path, err)
	}
	return nil
}
