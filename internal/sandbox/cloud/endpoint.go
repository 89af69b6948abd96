package cloud

import (
	"cmp"
	"net/http"
	"strconv"
)

// maxRequest bounds the body of a request, in bytes.
const maxRequest = 4 << 20

// Act does what a request asks for. What it returns is written as the answer; w takes headers only.
type Act func(w http.ResponseWriter, r *http.Request) (any, *Fault)

// Protocol is what is a cloud's own about the requests that it answers: its messages.
type Protocol struct {
	// Read parses a request: the action by which it is counted and disturbed, and the function that
	// does it. A fault means that it is not understood, or not signed: it is refused and neither
	// counted nor disturbed.
	Read func(*http.Request) (action string, act Act, f *Fault)
	// Encode makes answers, and what Refusal makes of a fault, the content of a response of the
	// type Type.
	Type    string
	Encode  func(any) ([]byte, error)
	Refusal func(*Fault) any
	// Throttled answers clients that ask too often.
	Throttled Fault
}

// Serve answers a request to a cloud that is disturbed by d.
func (p *Protocol) Serve(d *Disturbances, w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxRequest)
	action, act, f := p.Read(r)
	if f != nil {
		p.refuse(w, f)
		return
	}
	scripted, admitted := d.Arrive(r, action)
	switch {
	case !admitted:
		p.refuse(w, &p.Throttled)
		return
	case scripted != nil && !scripted.After:
		p.refuse(w, scripted)
		return
	}
	answer, f := act(w, r)
	if scripted != nil {
		f = scripted
	}
	if f != nil {
		p.refuse(w, f)
		return
	}
	p.write(w, http.StatusOK, answer)
}

func (p *Protocol) refuse(w http.ResponseWriter, f *Fault) {
	if f.Drop {
		Drop(w)
		return
	}
	status := cmp.Or(f.Status, http.StatusBadRequest)
	if f.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(f.RetryAfter))
	}
	p.write(w, status, p.Refusal(f))
}

func (p *Protocol) write(w http.ResponseWriter, status int, content any) {
	text, err := p.Encode(content)
	if err != nil {
		panic(http.ErrAbortHandler) // of this program: no cloud answers so
	}
	w.Header().Set("Content-Type", p.Type)
	w.WriteHeader(status)
	_, _ = w.Write(text) // the client may have gone
}
