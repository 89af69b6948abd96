package ui

import (
	"cmp"
	"compress/gzip"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The page, as `make web` builds it; without that there is only a file that keeps the folder.
//
//go:embed all:dist
var dist embed.FS

const (
	// maxFlows is how many flows one answer may have.
	maxFlows = 500
	// maxTime is the last second that may be asked for.
	maxTime = 1 << 33
	// contentPolicy lets the page load what this server has, and nothing from elsewhere.
	contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; " +
		"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

// Server answers the page and its data:
//
//	GET /                       the page
//	GET /api/map?span=&until=   Snapshot of so many seconds until a time, which is in seconds
//	                            since 1970, or until now
//	GET /api/flows?edge=&workload=&verdict=&until=&limit=
//	                            []Flow of any of these edges until that time, the latest first
//	GET /api/change?id=         Effect of a change of policies
//	GET /api/status             Status
//	GET /api/health             Health
//	GET /api/reach?ns=          Reach, of all namespaces or of some
//	GET /api/explain?edge=      Explanation of the last refusal by policy
//	POST /api/preview           Preview of the policies in the body
//
// The data need the token, as "Authorization: Bearer". The page has it from the fragment of its
// address, which no request carries, and keeps it where only pages of this very address and port
// read it: a cookie would be sent to every port of the machine. Requests by another name than an
// address, localhost or Host are refused, so that no page of a name that leads here reads what this
// one may (DNS rebinding).
type Server struct {
	graph    *Graph
	follower *Follower
	token    string
	host     string
}

// NewServer returns a server of what a follower collects, with a token of its own. host is a
// further name by which it may be asked, or "".
func NewServer(f *Follower, host string) *Server {
	return &Server{graph: f.Graph, follower: f, token: rand.Text(), host: host}
}

// minToken is how long a token is that others have made: 16 letters and digits are 95 bits.
const minToken = 16

// SetToken requires this token for data. It must be called before Serve.
func (s *Server) SetToken(token string) error {
	if len(token) < minToken {
		return fmt.Errorf("the token has %d characters, and less than %d may be guessed", len(token), minToken)
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("the token has characters that no request can carry: use letters and digits")
	}
	s.token = token
	return nil
}

// URL is what opens the page that is served at an address.
func (s *Server) URL(addr net.Addr) string {
	u := url.URL{Scheme: "http", Host: addr.String(), Path: "/", Fragment: "token=" + s.token}
	return u.String()
}

// Built reports whether the page was built into this program.
func Built() bool {
	_, err := fs.Stat(dist, "dist/index.html")
	return err == nil
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", contentPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead && (r.Method != http.MethodPost || r.URL.Path != "/api/preview"):
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "this page only shows: use GET", http.StatusMethodNotAllowed)
		return
	case !s.known(r.Host):
		http.Error(w, fmt.Sprintf("%q is no name of this server: use its address or localhost, or start it with --allowed-host", r.Host), http.StatusMisdirectedRequest)
		return
	}
	if strings.HasPrefix(r.URL.Path, "/api/") && !s.authorized(r) {
		h.Set("WWW-Authenticate", "Bearer")
		http.Error(w, "open the page by the address that hawser ui prints: it has a token that this request lacks", http.StatusUnauthorized)
		return
	}
	switch path := r.URL.Path; path {
	case "/api/map":
		s.serveMap(w, r)
	case "/api/flows":
		s.serveFlows(w, r)
	case "/api/change":
		effect, ok := s.graph.Effect(r.URL.Query().Get("id"))
		if !ok {
			http.Error(w, "this change of policies is no longer known: it is more than a quarter of an hour ago", http.StatusNotFound)
			return
		}
		answer(w, r, effect)
	case "/api/status":
		answer(w, r, s.follower.Status())
	case "/api/health":
		answer(w, r, s.follower.Health())
	case "/api/reach":
		s.serveReach(w, r)
	case "/api/explain":
		res, err := s.follower.Explain(r.Context(), r.URL.Query().Get("edge"))
		if err != nil {
			return // who asked has gone
		}
		answer(w, r, res)
	case "/api/preview":
		if r.Method != http.MethodPost {
			h.Set("Allow", "POST")
			http.Error(w, "send the policies: use POST", http.StatusMethodNotAllowed)
			return
		}
		s.servePreview(w, r)
	default:
		if !Built() {
			http.Error(w, "this program was built without the page: run `make web` and build it again", http.StatusNotFound)
			return
		}
		files, _ := fs.Sub(dist, "dist")
		http.FileServerFS(files).ServeHTTP(w, r)
	}
}

func (s *Server) authorized(r *http.Request) bool {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return ok && subtle.ConstantTimeCompare([]byte(token), []byte(s.token)) == 1
}

// known reports whether a Host header names this server.
func (s *Server) known(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return true
	}
	return host == "localhost" || s.host != "" && strings.EqualFold(host, s.host)
}

func (s *Server) serveMap(w http.ResponseWriter, r *http.Request) {
	span, err := parseSeconds(r, "span", int64(Window/time.Second))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	until, err := parseSeconds(r, "until", maxTime)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var from, to time.Time
	if until > 0 {
		to = time.Unix(until, 0)
	}
	if span > 0 {
		end := to
		if to.IsZero() {
			end = time.Now()
		}
		from = end.Add(-time.Duration(span) * time.Second)
	}
	answer(w, r, s.graph.Snapshot(from, to))
}

func (s *Server) serveFlows(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	limit := 100
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxFlows {
			http.Error(w, fmt.Sprintf("limit=%q is not a number from 1 to %d", text, maxFlows), http.StatusBadRequest)
			return
		}
		limit = n
	}
	until, err := parseSeconds(r, "until", maxTime)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	// To the end of the bucket, as the sums are.
	end := time.Unix(until, 0).Truncate(BucketLength).Add(BucketLength)
	workload, verdict, edges := q.Get("workload"), q.Get("verdict"), make(map[string]bool)
	for _, e := range q["edge"] {
		if e != "" {
			edges[e] = true
		}
	}
	answer(w, r, s.graph.Flows(limit, func(f *Flow) bool {
		if until > 0 && !f.Time.Before(end) {
			return false
		}
		if len(edges) > 0 && !edges[f.Edge] || verdict != "" && f.Verdict != verdict {
			return false
		}
		return workload == "" || f.Of(workload)
	}))
}

func (s *Server) serveReach(w http.ResponseWriter, r *http.Request) {
	namespaces := slices.DeleteFunc(r.URL.Query()["ns"], func(ns string) bool { return ns == "" })
	if len(namespaces) > maxNamespaces {
		http.Error(w, fmt.Sprintf("ns: more than %d", maxNamespaces), http.StatusBadRequest)
		return
	}
	slices.Sort(namespaces)
	res, err := s.follower.Reach(r.Context(), namespaces)
	if err != nil {
		return // who asked has gone
	}
	answer(w, r, res)
}

// parseSeconds returns a parameter, 0 if it is not there.
func parseSeconds(r *http.Request, name string, most int64) (int64, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > most {
		return 0, fmt.Errorf("%s=%q is not a number of seconds up to %d", name, text, most)
	}
	return n, nil
}

// answer writes a value as JSON, compressed for who understands that.
func answer(w http.ResponseWriter, r *http.Request, v any) {
	w.Header().Set("Content-Type", "application/json")
	// The only possible error is that the client has gone.
	if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		_ = json.NewEncoder(w).Encode(v)
		return
	}
	w.Header().Set("Content-Encoding", "gzip")
	z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed)
	_ = json.NewEncoder(z).Encode(v)
	_ = z.Close()
}

// stateName is a state of a node for people.
func stateName(s string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(cmp.Or(s, "unknown"), "NODE_"), "_", " "))
}
