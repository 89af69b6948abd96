package identities

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
)

// errDead is what a killed operator's requests fail with.
var errDead = errors.New("this operator is dead")

// writes reports whether a request changes what these tests are about.
func writes(r *http.Request) bool {
	return r.Method != http.MethodGet && !strings.Contains(r.URL.Path, "/events")
}

// killer ends an operator at its nth write: before the server has it, or after, so that only the
// answer is lost. From then on nothing gets through.
type killer struct {
	at    int64
	after bool
	n     atomic.Int64
	dead  chan struct{}
	once  sync.Once
}

func newKiller(at int, after bool) *killer {
	return &killer{at: int64(at), after: after, dead: make(chan struct{})}
}

func (k *killer) wrap(cfg *rest.Config) {
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return wrapped(next, func(r *http.Request) (*http.Response, error) {
			select {
			case <-k.dead:
				return nil, errDead
			default:
			}
			if !writes(r) || k.n.Add(1) < k.at {
				return next.RoundTrip(r)
			}
			if k.after && k.n.Load() == k.at {
				if resp, err := next.RoundTrip(r); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}
			k.once.Do(func() { close(k.dead) })
			return nil, errDead
		})
	})
}

// freezer is an operator that stands still when it has sent its first write to a path: that arrives
// later, and nothing else after it.
type freezer struct {
	path   string
	once   sync.Once
	frozen chan struct{}
	thawed chan struct{}
}

func newFreezer(path string) *freezer {
	return &freezer{path: path, frozen: make(chan struct{}), thawed: make(chan struct{})}
}

// thaw lets the write go on.
func (f *freezer) thaw() { close(f.thawed) }

func (f *freezer) wrap(cfg *rest.Config) {
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return wrapped(next, func(r *http.Request) (*http.Response, error) {
			first := false
			if writes(r) && strings.HasSuffix(r.URL.Path, f.path) {
				f.once.Do(func() { first = true; close(f.frozen) })
			}
			select {
			case <-f.frozen:
				if !first {
					return nil, errDead
				}
				<-f.thawed
				r = r.WithContext(context.WithoutCancel(r.Context())) // it is under way
			default:
			}
			return next.RoundTrip(r)
		})
	})
}

// roundTripper is a transport around another one.
type roundTripper struct {
	next http.RoundTripper
	f    func(*http.Request) (*http.Response, error)
}

func wrapped(next http.RoundTripper, f func(*http.Request) (*http.Response, error)) http.RoundTripper {
	return &roundTripper{next, f}
}

func (t *roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return t.f(r) }

// WrappedRoundTripper lets connections be closed.
func (t *roundTripper) WrappedRoundTripper() http.RoundTripper { return t.next }

// weather is a bad connection, as long as it is on.
type weather struct {
	mu  sync.Mutex
	rng *rand.Rand
	on  bool
	// stuck are watches of these resources that deliver nothing new meanwhile.
	stuck string
	clear chan struct{}
}

func newWeather(seed uint64) *weather {
	return &weather{rng: rand.New(rand.NewPCG(seed, 2)), clear: make(chan struct{})}
}

// start makes the weather bad, stop good again.
func (w *weather) start(stuck string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.on, w.stuck = true, stuck
}

func (w *weather) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.on, w.stuck = false, ""
	close(w.clear)
	w.clear = make(chan struct{})
}

// roll throws a dice with n faces, 0 in good weather.
func (w *weather) roll(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.on {
		return 0
	}
	return w.rng.IntN(n)
}

func (w *weather) wrap(cfg *rest.Config) {
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return wrapped(next, func(r *http.Request) (*http.Response, error) {
			if r.URL.Query().Get("watch") != "" {
				resp, err := next.RoundTrip(r)
				if err == nil {
					resp.Body = &watchBody{ReadCloser: resp.Body, w: w, path: r.URL.Path, done: r.Context().Done()}
				}
				return resp, err
			}
			switch w.roll(16) {
			case 1:
				return status(r, http.StatusTooManyRequests, "TooManyRequests"), nil
			case 2, 3:
				return status(r, http.StatusInternalServerError, "InternalError"), nil
			case 4:
				if r.Method != http.MethodGet {
					return status(r, http.StatusConflict, "Conflict"), nil
				}
			case 5:
				return nil, errors.New("the connection was refused")
			case 6, 7: // the answer is lost
				resp, err := next.RoundTrip(r)
				if err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
				return nil, errors.New("the connection was reset")
			case 8:
				select {
				case <-time.After(time.Duration(w.roll(200)) * time.Millisecond):
				case <-r.Context().Done():
				}
			}
			return next.RoundTrip(r)
		})
	})
}

// watchBody is a watch that breaks now and then, or delivers nothing.
type watchBody struct {
	io.ReadCloser
	w    *weather
	path string
	done <-chan struct{}
}

func (b *watchBody) Read(p []byte) (int, error) {
	b.w.mu.Lock()
	stuck, clear := b.w.stuck != "" && strings.HasSuffix(b.path, b.w.stuck), b.w.clear
	b.w.mu.Unlock()
	if stuck {
		select {
		case <-clear:
		case <-b.done:
		}
	}
	if !stuck && b.w.roll(40) == 1 {
		return 0, io.ErrUnexpectedEOF
	}
	return b.ReadCloser.Read(p)
}

// status is an answer of the server's.
func status(r *http.Request, code int, reason string) *http.Response {
	body := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d,"message":"bad weather"}`, reason, code)
	return &http.Response{
		StatusCode: code, Status: http.StatusText(code), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewBufferString(body)), ContentLength: int64(len(body)),
	}
}
