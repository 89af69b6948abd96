package azure

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"github.com/hawser-net/hawser/internal/operator/nodemanager"
)

// action finds the permissions in the text of a refusal; the last one is that which is missing.
var action = regexp.MustCompile(`'(Microsoft\.[A-Za-z]+/[A-Za-z/]+)'`)

// explain describes what an error means and what a person can do. Parts of Azure's own text that
// differ each time (IDs of requests and clients) are left out: the text is stored in objects. The
// codes are those of "Troubleshoot common Azure deployment errors" and "Understand how Azure
// Resource Manager throttles requests".
func explain(permission string, err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	var known *nodemanager.Error
	if errors.As(err, &known) {
		return err
	}
	out := &nodemanager.Error{Err: err}
	var e *azcore.ResponseError
	var auth *azidentity.AuthenticationFailedError
	switch {
	case errors.As(err, &auth):
		// What the identity service answers may hold what it was asked with.
		out.Err = errors.New("authentication failed")
		out.Code, out.Text = "AuthenticationFailed", "Azure does not accept the operator's credentials, or gives none: check its managed identity or the environment of the SDK"
		return out
	case !errors.As(err, &e):
		out.Text = fmt.Sprintf("Azure does not answer a request for %s: check the operator's credentials and its way to Azure Resource Manager; the operator's log has the details", permission)
		return out
	}
	out.Code = e.ErrorCode
	text := messageOf(e.RawResponse)
	out.Err = fmt.Errorf("%d %s: %s", e.StatusCode, e.ErrorCode, text)
	switch {
	case e.ErrorCode == "AnotherOperationInProgress", e.ErrorCode == "RetryableErrorDueToAnotherOperation":
		out.Text = "something else is changing the network interface or its machine: this is retried automatically"
	case e.StatusCode == http.StatusTooManyRequests:
		out.Kind, out.After = nodemanager.Throttled, retryAfter(e.RawResponse)
		out.Text = "Azure is asked more often than the subscription may: it is asked less often by itself; lower --limit-ipam-api-qps if this stays"
	case e.StatusCode == http.StatusPreconditionFailed:
		out.Text = "the network interface or its machine was changed concurrently: this is retried automatically"
	case e.ErrorCode == "AuthorizationFailed", e.ErrorCode == "LinkedAuthorizationFailed":
		if found := action.FindAllStringSubmatch(text, -1); len(found) > 0 {
			permission = found[len(found)-1][1]
		}
		out.Text = fmt.Sprintf("permission %s is missing: grant it to the operator's identity", permission)
	case e.StatusCode == http.StatusUnauthorized:
		out.Text = fmt.Sprintf("Azure does not accept the operator's credentials (%s): give it valid ones", e.ErrorCode)
	case e.ErrorCode == "SubnetIsFull":
		out.Kind = nodemanager.Exhausted
		out.Text = "the subnet has too few free addresses: widen it"
	case e.ErrorCode == "SubscriptionNotFound", e.ErrorCode == "ResourceGroupNotFound":
		out.Text = fmt.Sprintf("Azure: %s: correct --azure-subscription-id and --azure-resource-group, or grant the identity a role there", e.ErrorCode)
	case e.ErrorCode == "ScopeLocked":
		out.Text = "a lock keeps Azure from changing the network interface: remove it"
	default:
		out.Text = fmt.Sprintf("Azure refuses %s: %s", permission, e.ErrorCode)
	}
	return out
}

// messageOf returns the message of a response.
func messageOf(r *http.Response) string {
	if r == nil || r.Body == nil {
		return ""
	}
	// The SDK has read it, and left it to be read again.
	text, err := io.ReadAll(io.LimitReader(r.Body, 64<<10))
	if err != nil {
		return ""
	}
	r.Body = io.NopCloser(bytes.NewReader(text))
	var body struct {
		Error struct{ Message string }
	}
	if json.Unmarshal(text, &body) != nil {
		return ""
	}
	return body.Error.Message
}

// retryAfter returns the delay that a response asks for; 0 if none.
func retryAfter(r *http.Response) time.Duration {
	if r == nil {
		return 0
	}
	n, err := strconv.Atoi(r.Header.Get("Retry-After"))
	if err != nil || n < 0 {
		return 0
	}
	return time.Duration(n) * time.Second
}
