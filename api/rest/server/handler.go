// Package server serves the agent's REST API. The interface StrictServerInterface, with one method
// an operation and one response type for each code, is generated from api/openapi.yaml; NewHandler
// mounts an implementation of it.
//
// The package holds no state and starts no goroutine.
package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/hawser-net/hawser/api/rest"
)

//go:generate go tool oapi-codegen -config server.cfg.yaml ../../openapi.yaml

// BasePath is the prefix of all paths.
const BasePath = "/v1"

// MaxBodyBytes bounds the body of a request; a longer one is answered with 413.
const MaxBodyBytes = 1 << 20

// monitorWriteTimeout is how long a client of the event stream may take to accept data before it
// is cut off.
const monitorWriteTimeout = 10 * time.Second

// Error is a failure with the code it is answered with. An operation returns it (wrapped or not)
// where it has no generated response type for the case.
type Error struct {
	Code int
	Err  error
}

// Errorf returns an Error with a formatted cause. %w wraps.
func Errorf(code int, format string, args ...any) *Error {
	return &Error{Code: code, Err: fmt.Errorf(format, args...)}
}

// Error returns the cause, which is the body of the answer.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// NewHandler serves impl under BasePath. Every failure is answered with a JSON string: an Error
// with its code, any other error of impl with 500, a malformed request with 400, a body over
// MaxBodyBytes with 413, an unknown path with 404 and a wrong method with 405. Faults of the agent
// (500) are logged. The middlewares see every operation with its id from the contract; the last
// one is outermost.
func NewHandler(impl StrictServerInterface, log *slog.Logger, middlewares ...StrictMiddlewareFunc) http.Handler {
	badRequest := func(w http.ResponseWriter, r *http.Request, err error) {
		writeError(w, http.StatusBadRequest, err.Error())
	}
	strict := NewStrictHandlerWithOptions(impl, middlewares, StrictHTTPServerOptions{
		RequestErrorHandlerFunc: badRequest,
		ResponseErrorHandlerFunc: func(w http.ResponseWriter, r *http.Request, err error) {
			code := http.StatusInternalServerError
			var coded *Error
			if errors.As(err, &coded) {
				code = coded.Code
			}
			if code == http.StatusInternalServerError {
				log.Error("API request failed", "method", r.Method, "path", r.URL.Path, "error", err)
			}
			writeError(w, code, err.Error())
		},
	})
	mux := http.NewServeMux()
	HandlerWithOptions(strict, StdHTTPServerOptions{
		BaseURL:          BasePath,
		BaseRouter:       mux,
		ErrorHandlerFunc: badRequest,
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := mux.Handler(r); pattern == "" {
			unrouted(mux, w, r)
			return
		}
		if !bufferBody(w, r) {
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// bufferBody reads the whole body, so that its size and well-formedness are known before any
// operation sees it. It reports whether to go on; if not, the answer is written.
func bufferBody(w http.ResponseWriter, r *http.Request) bool {
	if r.Body == nil || r.Body == http.NoBody {
		return true
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBodyBytes))
	if err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			writeError(w, http.StatusRequestEntityTooLarge,
				fmt.Sprintf("request body is larger than %d bytes", tooLarge.Limit))
		} else {
			writeError(w, http.StatusBadRequest, fmt.Sprintf("cannot read request body: %v", err))
		}
		return false
	}
	if body = bytes.TrimSpace(body); len(body) > 0 && !json.Valid(body) {
		writeError(w, http.StatusBadRequest, "request body is not one JSON value")
		return false
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	return true
}

// unrouted answers a request for which there is no operation, with the code the mux chooses.
func unrouted(mux *http.ServeMux, w http.ResponseWriter, r *http.Request) {
	rec := &statusRecorder{header: w.Header()}
	mux.ServeHTTP(rec, r)
	w.Header().Del("X-Content-Type-Options")
	switch rec.code {
	case http.StatusMethodNotAllowed:
		writeError(w, rec.code, fmt.Sprintf("method %s is not allowed on %s; allowed: %s",
			r.Method, r.URL.Path, w.Header().Get("Allow")))
	case http.StatusNotFound:
		writeError(w, rec.code, fmt.Sprintf("no such path: %s", r.URL.Path))
	default: // a redirect to the cleaned path
		w.WriteHeader(rec.code)
	}
}

// statusRecorder keeps a response's code and headers and drops its body.
type statusRecorder struct {
	header http.Header
	code   int
}

func (s *statusRecorder) Header() http.Header { return s.header }

func (s *statusRecorder) Write(b []byte) (int, error) { return len(b), nil }

func (s *statusRecorder) WriteHeader(code int) { s.code = code }

func writeError(w http.ResponseWriter, code int, msg string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	// A failure to write means that the client is gone.
	_ = json.NewEncoder(w).Encode(msg)
}

// MonitorStream answers the operation Monitor. It is called once with a function that sends
// events at once, in one write; it runs until it returns or until emit fails because the client is
// gone or has not accepted data for ten seconds. It must return soon after the context of the
// operation ends, and must drop events (and report them as lost) rather than wait for emit while
// the kernel's buffer fills.
type MonitorStream func(emit func(...rest.MonitorEvent) error) error

// VisitMonitorResponse writes the stream.
func (s MonitorStream) VisitMonitorResponse(w http.ResponseWriter) error {
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	ctl := http.NewResponseController(w)
	if err := ctl.Flush(); err != nil {
		return nil // the status is sent; an error could no longer be answered
	}
	var buf bytes.Buffer
	// The stream's end, for whatever reason, is the end of the response: nothing to answer.
	_ = s(func(events ...rest.MonitorEvent) error {
		buf.Reset()
		enc := json.NewEncoder(&buf)
		for i := range events {
			if err := enc.Encode(&events[i]); err != nil {
				return err
			}
		}
		// Servers without deadlines (tests) are served without.
		_ = ctl.SetWriteDeadline(time.Now().Add(monitorWriteTimeout))
		if _, err := w.Write(buf.Bytes()); err != nil {
			return err
		}
		return ctl.Flush()
	})
	return nil
}
