package instance

import (
	"fmt"
	"strconv"
)

// optional is a flag whose value is nil until it is set.
type optional[T any] struct {
	into  **T
	kind  string
	parse func(string) (T, error)
}

func optionalInt(into **int) optional[int] { return optional[int]{into, "int", strconv.Atoi} }

func optionalBool(into **bool) optional[bool] { return optional[bool]{into, "bool", strconv.ParseBool} }

func (o optional[T]) String() string {
	if o.into == nil || *o.into == nil {
		return ""
	}
	return fmt.Sprint(**o.into)
}

func (o optional[T]) Type() string { return o.kind }

func (o optional[T]) Set(text string) error {
	v, err := o.parse(text)
	if err == nil {
		*o.into = &v
	}
	return err
}
