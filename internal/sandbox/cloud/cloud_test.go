package cloud

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// TestAddresses compares what is free with a count by hand, while others take and give back.
func TestAddresses(t *testing.T) {
	t.Parallel()
	a := NewAddresses(netip.MustParsePrefix("10.0.1.19/27"), 4, 1)
	taken := map[netip.Addr]bool{netip.MustParseAddr("10.0.1.4"): true, netip.MustParseAddr("10.0.1.30"): true}
	if free := a.Free(taken); len(free) != 32-5-2 || free[0].String() != "10.0.1.5" || free[24].String() != "10.0.1.29" {
		t.Errorf("free are %v", free)
	}
	a.Exhaust(taken, 3)
	if free := a.Free(taken); len(free) != 3 || a.Others() != 22 {
		t.Errorf("after others took all but 3: free are %v, others have %d", free, a.Others())
	}
	a.Exhaust(taken, 100)
	if free := a.Free(taken); len(free) != 25 || a.Others() != 0 {
		t.Errorf("after others gave back: %d free, others have %d", len(free), a.Others())
	}
}

// TestHistory: within the lag descriptions show what was before, then what is.
func TestHistory(t *testing.T) {
	t.Parallel()
	var h History[int]
	h.Put("a", 1)
	h.Lag(time.Hour)
	h.Put("a", 2)
	h.Put("b", 3)
	if seen := h.Seen(); seen["a"] != 1 || len(seen) != 1 {
		t.Errorf("seen is %v within the lag", seen)
	}
	h.Lag(0)
	if seen := h.Seen(); seen["a"] != 2 || seen["b"] != 3 {
		t.Errorf("seen is %v without a lag", seen)
	}
}

// TestServe: an unauthenticated call is neither counted nor throttled, the script is not asked
// about what the throttle refuses, and what takes effect before it fails has taken effect.
func TestServe(t *testing.T) {
	t.Parallel()
	var d Disturbances
	done := 0
	p := Protocol{
		Type: "application/json", Encode: json.Marshal, Refusal: func(f *Fault) any { return f.Code },
		Throttled: Fault{Code: "Slow", Status: 429, RetryAfter: 7},
		Read: func(r *http.Request) (string, Act, *Fault) {
			if r.Header.Get("Authorization") == "" {
				return "", nil, &Fault{Code: "Unauthorized", Status: 401}
			}
			return r.URL.Path, func(http.ResponseWriter, *http.Request) (any, *Fault) { done++; return "done", nil }, nil
		},
	}
	call := func(path string, signed bool) (int, string, string) {
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(""))
		if signed {
			r.Header.Set("Authorization", "x")
		}
		w := httptest.NewRecorder()
		p.Serve(&d, w, r)
		return w.Code, w.Body.String(), w.Header().Get("Retry-After")
	}
	want := func(what string, code int, text string, signed bool) {
		t.Helper()
		if c, b, _ := call("/x", signed); c != code || b != `"`+text+`"` {
			t.Errorf("%s: %d %s, want %d %s", what, c, b, code, text)
		}
	}
	want("unauthenticated", 401, "Unauthorized", false)
	want("authenticated", 200, "done", true)
	if n := d.Calls()["/x"]; n != 1 || done != 1 {
		t.Errorf("%d calls counted, %d done; want one of each", n, done)
	}
	d.Script(func(string) *Fault { return &Fault{Code: "Broken"} })
	want("refused before", 400, "Broken", true)
	d.Script(func(string) *Fault { return &Fault{Code: "Broken", After: true} })
	if want("refused after", 400, "Broken", true); done != 2 {
		t.Errorf("%d calls took effect, want 2", done)
	}
	d.Script(func(string) *Fault { t.Error("the script is asked about a call that is throttled"); return nil })
	d.Throttle(0.001, 0)
	if c, b, after := call("/x", true); c != 429 || b != `"Slow"` || after != "7" {
		t.Errorf("throttled: %d %s, to come back in %q s", c, b, after)
	}
	want("unauthenticated while throttled", 401, "Unauthorized", false)
}
