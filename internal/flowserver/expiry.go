package flowserver

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-net/hawser/pkg/retry"
)

const (
	// expiryInterval is how often certificates are looked at.
	expiryInterval = time.Minute
	// expiryWarning is how long before its end a certificate is warned of, or a fifth of its time,
	// whichever is shorter.
	expiryWarning = 30 * 24 * time.Hour
	// expiryRepeat is after how long a warning is logged again.
	expiryRepeat = 24 * time.Hour
	// maxPeers is of how many others the certificates are remembered, maxPEM how much of a file is
	// read.
	maxPeers = 8192
	maxPEM   = 1 << 20
	// maxListedPeers is how many others a warning names.
	maxListedPeers = 5
	// A connection may stay up for months after the files that it was made with were renewed. So
	// certificates of peers are dropped after peerMemory, or this share of a certificate's
	// lifetime, and a relay has nodes present them again after a third of that.
	peerMemory      = 3 * time.Hour
	peerMemoryShare = 3.0 / 10
)

// CertificateKey is the log key that identifies the certificate of a warning.
const CertificateKey = "certificate"

// othersToo begins the text about peers that are not named.
const othersToo = "so do those of "

// CertificateFile is a file whose certificates are looked at.
type CertificateFile struct {
	// Name is its purpose, in the metric and in texts.
	Name, Path string
	// Authorities means that the file has several, of which one is enough.
	Authorities bool
}

// term is from when to when a certificate is valid.
type term struct{ begin, end time.Time }

// soon reports whether it expires so soon that a warning is due.
func (t term) soon(now time.Time) bool {
	return !t.end.IsZero() && t.end.Sub(now) < min(expiryWarning, t.end.Sub(t.begin)/5)
}

// memory is how long it is known from one handshake that a certificate is in use.
func (t term) memory() time.Duration {
	return min(peerMemory, time.Duration(float64(t.end.Sub(t.begin))*peerMemoryShare))
}

// shownTerm is the certificate that a peer presented, its name, and when.
type shownTerm struct {
	term
	name string
	at   time.Time
}

// current reports whether it is known to be still in use.
func (s shownTerm) current(now time.Time) bool { return now.Sub(s.at) <= s.memory() }

// Expiry reports when certificates expire, those of files and those that peers presented: in the
// log, to the status callback, and as a metric. It is safe for concurrent use.
type Expiry struct {
	log    *slog.Logger
	report func(problem string)
	files  func() []CertificateFile
	now    func() time.Time

	mu  sync.Mutex
	own map[string]term
	// peers are clients by their certificates, of which several may have one name, and servers by
	// the names under which they were asked, of which several may have one certificate.
	peers  map[string]shownTerm
	logged map[string]time.Time
}

// NewExpiry returns one that looks at files. report gets what is wrong, in one text, and the
// empty text when nothing is; it may be nil.
func NewExpiry(log *slog.Logger, report func(problem string), files ...CertificateFile) *Expiry {
	return NewExpiryOf(log, report, func() []CertificateFile { return files })
}

// NewExpiryOf is NewExpiry for files whose paths may change: it asks for them each time.
func NewExpiryOf(log *slog.Logger, report func(problem string), files func() []CertificateFile) *Expiry {
	return &Expiry{log: log, report: report, files: files, now: time.Now, own: map[string]term{}, peers: map[string]shownTerm{}, logged: map[string]time.Time{}}
}

// Seen remembers the certificate of a client. It has the form of [tls.Config.VerifyConnection], as
// SeenServer has, and never fails.
func (e *Expiry) Seen(st tls.ConnectionState) error {
	if e == nil || len(st.PeerCertificates) == 0 {
		return nil
	}
	leaf := st.PeerCertificates[0]
	name := leaf.Subject.CommonName
	if len(leaf.DNSNames) > 0 {
		name = leaf.DNSNames[0]
	}
	sum := sha256.Sum256(leaf.Raw)
	e.remember("client "+string(sum[:]), name, leaf)
	return nil
}

// SeenServer remembers the certificate of a server, in place of what it showed before.
func (e *Expiry) SeenServer(st tls.ConnectionState) error {
	if e != nil && len(st.PeerCertificates) > 0 {
		e.remember("server "+st.ServerName, st.ServerName, st.PeerCertificates[0])
	}
	return nil
}

func (e *Expiry) remember(key, name string, leaf *x509.Certificate) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, known := e.peers[key]; (known || len(e.peers) < maxPeers) && len(name) <= 255 {
		e.peers[key] = shownTerm{term{leaf.NotBefore, leaf.NotAfter}, name, e.now()}
	}
}

// Outdated reports whether a server should present its certificate again, before the record of it
// is dropped; false if it has presented none.
func (e *Expiry) Outdated(serverName string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	s, ok := e.peers["server "+serverName]
	return ok && e.now().Sub(s.at) > s.memory()/3
}

// Run looks at the certificates all the time, until ctx ends.
func (e *Expiry) Run(ctx context.Context) error {
	e.check(e.now())
	for retry.Sleep(ctx, expiryInterval) {
		e.check(e.now())
	}
	return nil
}

// check looks at all certificates.
func (e *Expiry) check(now time.Time) {
	own := map[string]term{}
	var problems []string
	for _, f := range e.files() {
		if f.Path == "" {
			continue
		}
		t, err := termOf(f)
		switch {
		case err != nil:
			continue // the next connection that reads the file reports the error
		case t.soon(now):
			problems = append(problems, ends("the certificate "+f.Name+" ("+f.Path+")", t, now))
		}
		own[f.Name] = earlier(own[f.Name], t)
	}
	e.mu.Lock()
	e.own = own
	maps.DeleteFunc(e.peers, func(_ string, s shownTerm) bool { return !s.current(now) })
	var peers []string
	for _, s := range slices.SortedFunc(maps.Values(e.peers), func(a, b shownTerm) int { return cmp.Or(cmp.Compare(a.name, b.name), a.end.Compare(b.end)) }) {
		// One that was shown before it ended soon may have been renewed since.
		if s.soon(now) && s.soon(s.at) {
			peers = append(peers, ends(fmt.Sprintf("the certificate of %q", s.name), s.term, now))
		}
	}
	if more := len(peers) - maxListedPeers; more > 0 {
		peers = append(peers[:maxListedPeers], fmt.Sprintf("%s%d others", othersToo, more))
	}
	problems = append(problems, peers...)
	var fresh []string
	maps.DeleteFunc(e.logged, func(_ string, at time.Time) bool { return now.Sub(at) >= expiryRepeat })
	for _, text := range problems {
		what, _, _ := strings.Cut(text, " in ")
		if strings.HasPrefix(what, othersToo) {
			what = othersToo // how many they are changes all the time
		}
		if e.logged[what].IsZero() && len(e.logged) < maxPeers {
			e.logged[what], fresh = now, append(fresh, text)
		}
	}
	e.mu.Unlock()
	for _, text := range fresh {
		e.log.Warn("A certificate ends soon; connections fail afterwards", CertificateKey, whose(text), "error", text)
	}
	if e.report != nil {
		e.report(strings.Join(problems, "; "))
	}
}

// ends describes when a certificate expires.
func ends(what string, t term, now time.Time) string {
	if left := t.end.Sub(now); left > 0 {
		return fmt.Sprintf("%s ends in %v, at %s", what, left.Round(time.Minute), t.end.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("%s has ended, at %s", what, t.end.UTC().Format(time.RFC3339))
}

// whose describes the certificate for ends.
func whose(text string) string {
	what, _, _ := strings.Cut(text, " ends in ")
	what, _, _ = strings.Cut(what, " has ended, at ")
	return what
}

// earlier is the one of two terms that ends first; the second if there was none.
func earlier(a, b term) term {
	if a.end.IsZero() || b.end.Before(a.end) {
		return b
	}
	return a
}

// termOf returns for how long what a file has is valid: all of a chain, or one of several
// authorities.
func termOf(f CertificateFile) (out term, err error) {
	file, err := os.Open(f.Path)
	if err != nil {
		return term{}, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxPEM))
	if err != nil {
		return term{}, err
	}
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return term{}, err
		}
		t := term{c.NotBefore, c.NotAfter}
		switch {
		case !f.Authorities:
			out = earlier(out, t)
		case t.end.After(out.end):
			out = t
		}
	}
	if out.end.IsZero() {
		return term{}, errors.New("it holds no certificate")
	}
	return out, nil
}

var secondsLeft = prometheus.NewDesc("hawser_certificate_seconds_left",
	"Time until a certificate ends, less than 0 afterwards; peers is the first of those that others showed of late.", []string{"certificate"}, nil)

// Describe implements [prometheus.Collector].
func (e *Expiry) Describe(ch chan<- *prometheus.Desc) { ch <- secondsLeft }

// Collect implements [prometheus.Collector].
func (e *Expiry) Collect(ch chan<- prometheus.Metric) {
	e.mu.Lock()
	defer e.mu.Unlock()
	report := func(name string, t term) {
		ch <- prometheus.MustNewConstMetric(secondsLeft, prometheus.GaugeValue, t.end.Sub(e.now()).Seconds(), name)
	}
	for name, t := range e.own {
		report(name, t)
	}
	var first term
	for _, s := range e.peers {
		if s.current(e.now()) {
			first = earlier(first, s.term)
		}
	}
	if !first.end.IsZero() {
		report("peers", first)
	}
}
