package instance

import "strconv"

// optionalInt is a flag whose value is nil as long as nobody sets it.
type optionalInt struct{ into **int }

func (o optionalInt) String() string {
	if o.into == nil || *o.into == nil {
		return ""
	}
	return strconv.Itoa(**o.into)
}

func (o optionalInt) Type() string { return "int" }

func (o optionalInt) Set(text string) error {
	n, err := strconv.Atoi(text)
	if err == nil {
		*o.into = &n
	}
	return err
}

// optionalBool is the same for yes or no.
type optionalBool struct{ into **bool }

func (o optionalBool) String() string {
	if o.into == nil || *o.into == nil {
		return ""
	}
	return strconv.FormatBool(**o.into)
}

func (o optionalBool) Type() string { return "bool" }

func (o optionalBool) Set(text string) error {
	yes, err := strconv.ParseBool(text)
	if err == nil {
		*o.into = &yes
	}
	return err
}
