package alibaba

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aliyun/alibaba-cloud-sdk-go/sdk/auth"
	"github.com/aliyun/alibaba-cloud-sdk-go/sdk/auth/credentials"
	sdkerrors "github.com/aliyun/alibaba-cloud-sdk-go/sdk/errors"
	"github.com/aliyun/alibaba-cloud-sdk-go/sdk/requests"

	"github.com/hawser-net/hawser/internal/operator/nodemanager"
)

const (
	ecsVersion = "2014-05-26"
	vpcVersion = "2016-04-28"
	// answerLimit bounds what is read of an answer.
	answerLimit = 32 << 20
)

// client makes the calls of ECS and VPC. The SDK knows credentials, signs, and names errors; the
// requests are sent here, for its own client cannot be stopped, and changes itself when it is used
// by many at once.
type client struct {
	region, endpoint string
	http             *http.Client

	mu    sync.Mutex // the chain remembers which of its parts had credentials
	chain credentials.CredentialsProvider
}

// isVPC reports whether an action is one of VPC; else it is one of ECS.
func isVPC(action string) bool { return action == "DescribeVSwitches" || action == "DescribeVpcs" }

// params are those of an action; lists are numbered from 1.
type params map[string]string

func (p params) list(name string, values ...string) {
	for k, v := range values {
		p[fmt.Sprintf("%s.%d", name, k+1)] = v
	}
}

func (p params) tags(tags map[string]string) {
	for k, name := range slices.Sorted(maps.Keys(tags)) {
		p[fmt.Sprintf("Tag.%d.Key", k+1)], p[fmt.Sprintf("Tag.%d.Value", k+1)] = name, tags[name]
	}
}

// GetCredentials and GetProviderName implement credentials.CredentialsProvider.
func (c *client) GetCredentials() (*credentials.Credentials, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cc, err := c.chain.GetCredentials()
	if err != nil {
		// Its text may contain responses of the services.
		return nil, errors.New("no credentials: the environment, the files and the instance's RAM role have none")
	}
	return cc, nil
}

// GetProviderName is the name of the chain.
func (c *client) GetProviderName() string { return c.chain.GetProviderName() }

// do makes one call; into gets the answer.
func (c *client) do(ctx context.Context, action string, p params, into any) error {
	r := requests.NewCommonRequest()
	r.Product, r.Version, r.ApiName, r.Method, r.Scheme = "ecs", ecsVersion, action, requests.POST, requests.HTTPS
	if isVPC(action) {
		r.Product, r.Version = "vpc", vpcVersion
	}
	r.AcceptFormat = "JSON"
	if r.Domain = c.endpoint; r.Domain == "" {
		r.Domain = r.Product + "-vpc." + c.region + ".aliyuncs.com" // reached without the Internet
	}
	maps.Copy(r.FormParams, p)
	r.TransToAcsRequest()
	if err := auth.Sign(r, nil, c.region, c); err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, r.GetMethod(), r.BuildUrl(), r.GetBodyReader())
	if err != nil {
		return err
	}
	for k, v := range r.GetHeaders() {
		req.Header.Set(k, v)
	}
	answer, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, answerLimit))
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return sdkerrors.NewServerError(answer.StatusCode, string(text), "")
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(text, into)
}

// call makes a call within the budget.
func (p *Provider) call(ctx context.Context, action string, in params, into any) error {
	do := p.budget.Do
	if strings.HasPrefix(action, "Describe") {
		do = p.budget.Read
	}
	return do(ctx, action, func(ctx context.Context) error { return explain(action, p.client.do(ctx, action, in, into)) })
}

// pages makes calls until all pages of a list are read. decode takes one, and returns how many
// there are in it, how many there are at all, and the token of the next page.
func (p *Provider) pages(ctx context.Context, action string, size int, in params, decode func(text []byte) (n, total int, next string, err error)) error {
	in["PageSize"], in["MaxResults"] = strconv.Itoa(size), strconv.Itoa(size)
	if isVPC(action) {
		delete(in, "MaxResults")
	} else {
		delete(in, "PageSize")
	}
	read := 0
	for page := 1; ; page++ {
		var text json.RawMessage
		if err := p.call(ctx, action, in, &text); err != nil {
			return err
		}
		n, total, next, err := decode(text)
		if err != nil {
			return &nodemanager.Error{Text: fmt.Sprintf("Alibaba Cloud answers %s with what is not understood", action), Err: err}
		}
		read += n
		if isVPC(action) {
			if n == 0 || read >= total {
				return nil
			}
			in["PageNumber"] = strconv.Itoa(page + 1)
			continue
		}
		if next == "" {
			return nil
		}
		in["NextToken"] = next
	}
}

// regionOf asks the instance that this runs on for its region ("Instance metadata").
func regionOf(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	const at = "http://100.100.100.200/latest/"
	ask := func(method, path, header, value string) (string, error) {
		req, err := http.NewRequestWithContext(ctx, method, at+path, nil)
		if err != nil {
			return "", err
		}
		req.Header.Set(header, value)
		r, err := http.DefaultClient.Do(req)
		if err != nil {
			return "", err
		}
		defer r.Body.Close()
		text, err := io.ReadAll(io.LimitReader(r.Body, 4096))
		if err == nil && r.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", path, r.Status)
		}
		return strings.TrimSpace(string(text)), err
	}
	token, err := ask(http.MethodPut, "api/token", "X-aliyun-ecs-metadata-token-ttl-seconds", "60")
	if err != nil {
		return "", err
	}
	return ask(http.MethodGet, "meta-data/region-id", "X-aliyun-ecs-metadata-token", token)
}
