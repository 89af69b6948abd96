package azure

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"

	"github.com/hawser-net/hawser/internal/operator/nodemanager"
	"github.com/hawser-net/hawser/pkg/retry"
)

// Versions of the parts of the API.
const (
	networkVersion = "2024-05-01"
	computeVersion = "2024-07-01"
	// setNICVersion is the last in which interfaces of scale sets can be read ("Network Interface
	// In VM Scale Set").
	setNICVersion = "2018-10-01"
)

type reference struct {
	ID string `json:"id"`
}

// ipConfig is an IP configuration ("NetworkInterfaceIPConfiguration").
type ipConfig struct {
	Name       string `json:"name"`
	Properties struct {
		Address string     `json:"privateIPAddress,omitempty"`
		Method  string     `json:"privateIPAllocationMethod,omitempty"`
		Version string     `json:"privateIPAddressVersion,omitempty"`
		Primary bool       `json:"primary"`
		Subnet  *reference `json:"subnet,omitempty"`
	} `json:"properties"`
}

// nic is a network interface ("NetworkInterface"), as far as it is read.
type nic struct {
	ID         string            `json:"id"`
	Name       string            `json:"name"`
	Etag       string            `json:"etag"`
	Tags       map[string]string `json:"tags"`
	Properties struct {
		State   string     `json:"provisioningState"`
		MAC     string     `json:"macAddress"`
		Primary bool       `json:"primary"`
		Machine *reference `json:"virtualMachine"`
		Group   *reference `json:"networkSecurityGroup"`
		Configs []ipConfig `json:"ipConfigurations"`
	} `json:"properties"`
}

// send makes a request within the budget: permission is what it needs.
func (p *Provider) send(ctx context.Context, permission, method, at, version string, body any, etag string, into any) (answer *http.Response, err error) {
	do := p.budget.Do
	if method == http.MethodGet {
		do = p.budget.Read
	}
	err = do(ctx, permission, func(ctx context.Context) error {
		err := func() error {
			if strings.HasPrefix(at, "/") {
				at = p.arm.Endpoint() + at + "?api-version=" + version
			}
			if !p.same(at) { // a request bears the operator's token
				return &nodemanager.Error{Text: fmt.Sprintf("Azure: what %s is asked of is not at its endpoint", permission)}
			}
			req, err := runtime.NewRequest(ctx, method, at)
			if err != nil {
				return err
			}
			req.Raw().Header.Set("Accept", "application/json")
			if etag != "" {
				req.Raw().Header.Set("If-Match", etag)
			}
			if body != nil {
				if err := runtime.MarshalAsJSON(req, body); err != nil {
					return err
				}
			}
			if answer, err = p.arm.Pipeline().Do(req); err != nil {
				return err
			}
			if !runtime.HasStatusCode(answer, http.StatusOK, http.StatusCreated, http.StatusAccepted) {
				return runtime.NewResponseError(answer)
			}
			if into == nil {
				return nil
			}
			return runtime.UnmarshalAsJSON(answer, into)
		}()
		return explain(permission, err)
	})
	return answer, err
}

// get reads a resource.
func (p *Provider) get(ctx context.Context, permission, id, version string, into any) error {
	_, err := p.send(ctx, permission, http.MethodGet, id, version, nil, "", into)
	return err
}

// list reads all pages of a list.
func list[T any](ctx context.Context, p *Provider, permission, at, version string) (all []T, err error) {
	for next := at; next != ""; {
		var page struct {
			Value []T    `json:"value"`
			Next  string `json:"nextLink"`
		}
		if err := p.get(ctx, permission, next, version, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Value...)
		if next = page.Next; next != "" && !p.same(next) {
			return nil, &nodemanager.Error{Text: fmt.Sprintf("Azure: the list for %s goes on elsewhere than at its endpoint", permission)}
		}
	}
	return all, nil
}

// same reports whether a URL is one of the endpoint.
func (p *Provider) same(at string) bool {
	u, err := url.Parse(at)
	own, ownErr := url.Parse(p.arm.Endpoint())
	return err == nil && ownErr == nil && u.Scheme == own.Scheme && u.Host == own.Host && u.RawQuery != ""
}

// put replaces a resource that still matches etag, and returns when the cloud is done, or after a
// timeout.
func (p *Provider) put(ctx context.Context, permission, id, version string, body any, etag string) error {
	bounded, cancel := context.WithTimeout(ctx, p.longest)
	defer cancel()
	err := p.replace(bounded, permission, id, version, body, etag)
	var unanswered *nodemanager.Error
	if bounded.Err() == nil && errors.As(err, &unanswered) {
		return err // a refusal, or one request that was not answered
	}
	end, _ := bounded.Deadline()
	if callers, ok := ctx.Deadline(); errors.Is(err, context.DeadlineExceeded) && (!ok || end.Before(callers)) {
		text := fmt.Sprintf("Azure: %s has not ended within %s: it is checked again automatically; see the activity log of the network interface or its machine", permission, p.longest)
		return &nodemanager.Error{Text: text, Err: err}
	}
	return err
}

// replace sends a resource and follows the operation that the cloud begins ("Track asynchronous
// Azure operations").
func (p *Provider) replace(ctx context.Context, permission, id, version string, body any, etag string) error {
	answer, err := p.send(ctx, permission, http.MethodPut, id, version, body, etag, nil)
	if err != nil {
		return err
	}
	at := answer.Header.Get("Azure-AsyncOperation")
	if at == "" {
		return nil
	}
	if !p.same(at) {
		return &nodemanager.Error{Text: fmt.Sprintf("Azure: what %s has begun is tracked elsewhere than at its endpoint", permission)}
	}
	poller, err := runtime.NewPoller[json.RawMessage](answer, p.arm.Pipeline(), nil)
	if err != nil {
		return explain(permission, err)
	}
	wait := p.poll
	for !poller.Done() {
		// The cloud may want to be asked seldom, but not so seldom that a change which has ended is
		// not seen to.
		if !retry.Sleep(ctx, max(wait, min(retryAfter(answer), 30*p.poll))) {
			return ctx.Err()
		}
		wait = min(wait*3/2, 10*p.poll)
		err := p.budget.Read(ctx, "operations/read", func(ctx context.Context) error {
			var err error
			answer, err = poller.Poll(ctx)
			return explain(permission, err)
		})
		if err != nil {
			return err
		}
	}
	return p.budget.Read(ctx, permission, func(ctx context.Context) error {
		_, err := poller.Result(ctx)
		return explain(permission, err)
	})
}

// object is a resource as it was read: what is not known of it stays as it is, for a resource is
// replaced as a whole.
type object map[string]json.RawMessage

// within returns an object of an object; an empty one if there is none.
func (o object) within(name string) (object, error) {
	out := object{}
	text, ok := o[name]
	if !ok || bytes.Equal(text, []byte("null")) {
		return out, nil
	}
	if err := json.Unmarshal(text, &out); err != nil {
		return nil, fmt.Errorf("answer of Azure: %s: %w", name, err)
	}
	return out, nil
}

// into reads an object into a type that has a part of it.
func (o object) into(v any) error {
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, v)
}

func (o object) set(name string, value any) error {
	text, err := json.Marshal(value)
	o[name] = text
	return err
}

// edited returns o whose list of IP configurations is edit's. Of those that are kept nothing is
// lost.
func (o object) edited(edit func(configs []ipConfig) (keep []bool, more []ipConfig, err error)) error {
	var raw []json.RawMessage
	var configs []ipConfig
	if text := o["ipConfigurations"]; text != nil {
		if err := json.Unmarshal(text, &raw); err != nil {
			return fmt.Errorf("answer of Azure: ipConfigurations: %w", err)
		}
		if err := json.Unmarshal(text, &configs); err != nil {
			return fmt.Errorf("answer of Azure: ipConfigurations: %w", err)
		}
	}
	keep, more, err := edit(configs)
	if err != nil {
		return err
	}
	out := []any{}
	for k := range raw {
		if keep[k] {
			out = append(out, raw[k])
		}
	}
	for _, x := range more {
		out = append(out, x)
	}
	return o.set("ipConfigurations", out)
}
